#!/usr/bin/env python3
"""State spaces of recurrent models: where hidden states go up to the N steps of training, and after them.

    python tools/analyze_state_space.py --weights BPTT=output/a/model_final.pth --weights C-RBP=output/b/model_final.pth
    python tools/analyze_state_space.py --config-file configs/Scenes/rfpn_demo.yaml --images 100 \\
        --weights R-FPN=output/demo/run/model_final.pth

N are the most steps of training, EXTRA_STEPS included. Hidden states are averaged over space; a PCA of each model's
steps 1..N projects the steps 1..T. Writes state_space.png, state_space.csv (distances 1→N and N→T, tests within a
model), state_space_pairs.csv (tests between models) and state_space.npz (projected states) into --output.
"""

import os

import numpy as np

from analysis_models import analysis_parser, dataset_of, load_models, model_configs, open_output, print_table
from arguments import natural, positive
from rfpn.analysis.state_space import collect_states, distance_table, draw_state_space, pair_table, project
from rfpn.analysis.unrolling import first_batches, trained_steps
from rfpn.data.build import build_test_loader
from rfpn.data.files import write_csv
from rfpn.programs import one_line_errors

# arguments of np.savez_compressed, which takes arrays by name
_ARCHIVE_NAMES = {"file", "allow_pickle"}


def main(args) -> None:
    """Collect, project, test, draw."""
    with one_line_errors():
        configs = model_configs(args)
        loaders = {name: build_test_loader(cfg, dataset_of(args, cfg)) for name, cfg in configs.items()}
        if taken := _ARCHIVE_NAMES & configs.keys():
            raise ValueError(f"no model may be named {taken.pop()!r} in state_space.npz: give --weights another NAME=FILE")
        folder = open_output(args, configs, "state_space")
        trained = {name: trained_steps(cfg)[-1] for name, cfg in configs.items()}
        if args.steps and args.steps <= max(trained.values()):
            raise ValueError(f"--steps must be more than the {max(trained.values())} steps of training, got {args.steps}")
        spaces = {}
        for name, _, model in load_models(configs):
            states = collect_states(model, first_batches(loaders[name], args.images), args.steps or 2 * trained[name])
            spaces[name] = project(states, trained[name])
            if args.sample >= (count := len(spaces[name].projected)):
                raise ValueError(f"--sample must be below {count}, the number of samples of {name}, got {args.sample}")
        tables = {"state_space": distance_table(spaces, args.components)}
        tables["state_space_pairs"] = pair_table(spaces, args.components)
        for name, rows in tables.items():
            if rows:
                print_table(rows)
                write_csv(os.path.join(folder, f"{name}.csv"), rows)
        projected = {name: space.projected.astype(np.float32) for name, space in spaces.items()}
        np.savez_compressed(os.path.join(folder, "state_space.npz"), **projected)
        draw_state_space(os.path.join(folder, "state_space.png"), spaces, args.components, args.sample)
        print(f"written to {folder}")


def parse_args(argv=None):
    """Models, data and what to draw."""
    parser = analysis_parser(__doc__)
    parser.add_argument("--steps", type=positive, help="T (default: twice each model's steps of training)")
    parser.add_argument("--images", type=natural, default=1000, help="images to look at, 0 for all (default: 1000)")
    parser.add_argument("--components", type=natural, default=0, help="axes that distances are taken on (default: all)")
    parser.add_argument("--sample", type=natural, default=0, help="image or RoI whose way is drawn, from 0 (default: 0)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(parse_args())
