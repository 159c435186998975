#!/usr/bin/env python3
"""How Pathfinder models trace contours: the step at which each pixel joined the prediction, as a heat map.

    python tools/analyze_contour.py --weights BPTT=output/a/model_final.pth --weights C-RBP=output/b/model_final.pth

Writes contour.png (a column of heat maps for each model), growth_<model>.png (probabilities step by step) and contour.csv
(pixels that joined at each step, on and off the target, by image) into --output.
"""

import os

import numpy as np

from analysis_models import analysis_parser, dataset_of, load_models, model_configs, open_output
from arguments import positive
from rfpn.analysis.contour_growth import draw_contour_growth, draw_joining_steps, first_images, joining_counts, joining_steps
from rfpn.analysis.unrolling import trained_steps
from rfpn.data.architectures import is_pathfinder
from rfpn.data.build import build_test_loader
from rfpn.data.files import write_csv
from rfpn.programs import one_line_errors

_COLUMNS = 8


def main(args) -> None:
    """Unroll, count, draw."""
    with one_line_errors():
        configs = model_configs(args)
        for name, cfg in configs.items():
            if not is_pathfinder(cfg):
                raise ValueError(f"{name} is no Pathfinder model; see tools/analyze_flood_fill.py for mask heads")
        if len(sizes := {cfg.INPUT.PATHFINDER_SIZE for cfg in configs.values()}) > 1:
            raise ValueError(f"images must be of one size, not {sorted(sizes)} pixels: set INPUT.PATHFINDER_SIZE for all")
        steps = args.steps or 2 * max(trained_steps(cfg)[-1] for cfg in configs.values())
        # the same images for all models
        dataset = dataset_of(args, next(iter(configs.values())))
        loaders = {name: build_test_loader(cfg, dataset) for name, cfg in configs.items()}
        folder = open_output(args, configs, "contour")
        joined, rows = {}, []
        for name, _, model in load_models(configs):
            inputs, growth = first_images(model, loaders[name], args.images, steps)
            joined[name] = joining_steps(growth)
            for image, (record, of_image) in enumerate(zip(inputs, joined[name])):
                counts = joining_counts(of_image, record["sem_seg"].numpy(), steps)
                rows += [{"model": name, "image": image, **count} for count in counts]
            drawn = np.unique(np.linspace(1, steps, min(steps, _COLUMNS)).round().astype(int)).tolist()
            draw_contour_growth(os.path.join(folder, f"growth_{name}.png"), inputs, growth, drawn)
        write_csv(os.path.join(folder, "contour.csv"), rows)
        draw_joining_steps(os.path.join(folder, "contour.png"), inputs, joined, steps)
        print(f"written to {folder}")


def parse_args(argv=None):
    """Models, data and number of images."""
    parser = analysis_parser(__doc__)
    parser.add_argument("--steps", type=positive, help="T (default: twice the largest number in training)")
    parser.add_argument("--images", type=positive, default=6, help="images to draw (default: 6)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(parse_args())
