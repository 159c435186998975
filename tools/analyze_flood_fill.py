#!/usr/bin/env python3
"""Does a model fill objects as a flood fill would? Rank correlation of the steps at which both reach each part.

    python tools/analyze_flood_fill.py --weights R-FPN=output/demo/run/model_final.pth
    python tools/analyze_flood_fill.py --weights C-RBP=output/b/model_final.pth --bridge 2      # Pathfinder

Ground-truth masks are tessellated into Voronoi cells; an idealised flood runs over them from the cell that the model
reaches first. Controls: the model's times shuffled among cells, floods from all other cells, and the depth of a cell
within the object. Writes flood_fill.csv (a row for each object), flood_fill.json (means and tests), flood_fill.png
(objects) and flood_fill_scores.png into --output.
"""

import os

from tqdm import tqdm

from analysis_models import analysis_parser, dataset_of, load_models, model_configs, open_output, write_results
from arguments import natural, positive
from rfpn.analysis.flood_fill import draw_flood_fill, draw_scores, similarity, summarise, tessellate
from rfpn.analysis.object_growth import object_growths
from rfpn.analysis.unrolling import recurrent_layer
from rfpn.data.build import build_test_loader
from rfpn.programs import one_line_errors


def main(args) -> None:
    """Score every model, sum up, draw."""
    with one_line_errors():
        if args.cells < 5 or not 0 < args.threshold < 1:
            raise ValueError("--cells must be at least 5; --threshold must lie in (0, 1)")
        configs = model_configs(args)
        datasets = {name: dataset_of(args, cfg) for name, cfg in configs.items()}
        for name, dataset in datasets.items():
            # built only to check the set before any model is scored
            build_test_loader(configs[name], dataset)
        folder = open_output(args, configs, "flood_fill")
        rows, found, examples, summaries = [], {}, [], {}
        for name, cfg, model in load_models(configs):
            compared, small = compare(args, cfg, model, datasets[name])
            if not compared:
                remedy = "give more --images, or larger ones"
                raise ValueError(f"{name}: none of {small} objects is large enough to tessellate: {remedy}")
            found[name] = [score for *_, score in compared]
            summaries[name] = {"too_small": small, **summarise(found[name])}
            for thing, _, score in compared:
                rows.append({"model": name, "image": thing.image, "class": thing.name, **score._asdict()})
            for thing, cells, score in compared[: args.examples]:
                if score.start >= 0:
                    examples.append((f"{name}: {thing.name} of image {thing.image}", cells, thing.growth, score))
        write_results(folder, "flood_fill", rows, summaries)
        if examples:
            draw_flood_fill(os.path.join(folder, "flood_fill.png"), examples, args.threshold)
        draw_scores(os.path.join(folder, "flood_fill_scores.png"), found)
        print(f"written to {folder}")


def compare(args, cfg, model, dataset: str) -> tuple[list, int]:
    """(object, tessellation, similarity) for each object, and the number of those too small."""
    steps = args.steps or recurrent_layer(model).test_steps
    compared, small = [], 0
    growths = object_growths(cfg, model, dataset, steps, args.images, args.boxes == "predicted")
    for thing in tqdm(growths, desc="objects", disable=None):
        cells = tessellate(thing.mask, args.cells, args.seed, args.bridge)
        if cells is None:
            small += 1
            continue
        # probabilities are drawn for the examples alone
        kept = thing if len(compared) < args.examples else thing._replace(growth=None)
        score = similarity(cells, thing.growth, args.threshold, seed=args.seed + len(compared))
        compared.append((kept, cells, score))
    return compared, small


def parse_args(argv=None):
    """Models, data and settings of the comparison."""
    parser = analysis_parser(__doc__)
    parser.add_argument("--steps", type=positive, help="T (default: evaluation's)")
    images = "images to look at, at least (Pathfinder batches stay whole); 0 for all (default: 200)"
    parser.add_argument("--images", type=natural, default=200, help=images)
    parser.add_argument("--boxes", choices=("truth", "predicted"), default="truth", help="of panoptic models' masks")
    parser.add_argument("--cells", type=int, default=30, help="Voronoi cells of an object at most (default: 30)")
    parser.add_argument("--threshold", type=float, default=0.5, help="mean probability at which a cell is reached")
    parser.add_argument("--bridge", type=natural, default=0, help="pixels that widen a mask to close its gaps (Pathfinder)")
    parser.add_argument("--examples", type=positive, default=3, help="objects drawn of each model (default: 3)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(parse_args())
