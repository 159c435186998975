#!/usr/bin/env python3
"""Stability of recurrent models: spectral radius and largest singular value of the last step's Jacobian, by sample.

    python tools/analyze_stability.py --weights BPTT=output/a/model_final.pth --weights C-RBP=output/b/model_final.pth
    python tools/analyze_stability.py --config-file configs/Scenes/rfpn_demo.yaml --images 10 --rois 3 \\
        --weights R-FPN=output/demo/run/model_final.pth

Beside them stand the column sums that the Lipschitz penalty sees, and the penalty: where signs cancel, it is 0 although
the step expands. Writes stability.csv (a row for each image or RoI), stability.json (a summary of each model) and
stability.png into --output.
"""

import os

from analysis_models import analysis_parser, dataset_of, load_models, model_configs, open_output, write_results
from arguments import positive
from rfpn.analysis.stability import analyse, draw_stability, summarise
from rfpn.analysis.unrolling import recurrent_layer
from rfpn.data.build import build_test_loader
from rfpn.programs import one_line_errors


def main(args) -> None:
    """Measure, sum up, draw."""
    with one_line_errors():
        configs = model_configs(args)
        loaders = {name: build_test_loader(cfg, dataset_of(args, cfg)) for name, cfg in configs.items()}
        folder = open_output(args, configs, "stability")
        rows, found = [], {}
        for name, cfg, model in load_models(configs):
            steps = args.steps or recurrent_layer(model).test_steps
            results = list(analyse(model, loaders[name], steps, args.images, args.rois))
            if not results:
                raise ValueError(f"{name}: nothing was detected in the images; try --images {2 * args.images}")
            found[name] = [row for _, row in results]
            rows += [{"model": name, "image": image, "steps": steps, **row._asdict()} for image, row in results]
        summaries = {name: summarise(samples) for name, samples in found.items()}
        write_results(folder, "stability", rows, summaries)
        coefficients = {name: cfg.MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT for name, cfg in configs.items()}
        draw_stability(os.path.join(folder, "stability.png"), found, coefficients)
        print(f"written to {folder}")


def parse_args(argv=None):
    """Models, data and number of samples."""
    parser = analysis_parser(__doc__)
    parser.add_argument("--steps", type=positive, help="T, whose last step is looked at (default: evaluation's)")
    parser.add_argument("--images", type=positive, default=20, help="images to look at (default: 20)")
    parser.add_argument("--rois", type=positive, default=3, help="RoIs of an image, best first (default: 3)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(parse_args())
