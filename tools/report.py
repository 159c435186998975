#!/usr/bin/env python3
"""Write one HTML page about a run: configuration, curves, scores, samples, predictions step by step.

    python tools/report.py --run output/demo/run
    python tools/report.py --run output/demo/run --samples 6 --steps 1-12 --output page.html

The page needs neither a network nor other files. Curves and scores come from the run's config.yaml and metrics.json,
and from what tools/evaluate_timesteps.py has written there; samples and steps need its checkpoint and its data set, and
are left out, with the reason, where one is missing. Words at the end are configuration overrides, as in MODEL.DEVICE cpu.
"""

import argparse
import logging
import os

from analysis_models import load_overlay
from arguments import natural, step_list
from detectron2.utils.logger import setup_logger

from rfpn.analysis.overlay import Overlay
from rfpn.analysis.report import charts, page
from rfpn.analysis.report.run import Run, read_run
from rfpn.analysis.samples import Sample, draw_samples
from rfpn.analysis.unrolling import trained_steps
from rfpn.data.files import whole_file
from rfpn.programs import INPUT_ERRORS, error_text, one_line_errors

logger = logging.getLogger("rfpn")

# steps whose predictions the slider shows by default, at most
_SHOWN_STEPS = 24
# shorter side of pictures in the page, pixels
_SIDE = 288


@one_line_errors()
def main(args) -> None:
    """Read the run, predict its samples, write the page."""
    setup_logger(name="rfpn", abbrev_name="rfpn")
    run = read_run(args.run)
    output = args.output or os.path.join(args.run, "report.html")
    if os.path.isdir(output):
        raise IsADirectoryError(f"--output {output} is a folder, not the file of a page")
    os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
    overlay, samples, reason = sample_run(run, args)
    if args.steps and overlay and not overlay.recurrent:
        raise ValueError(f"--steps needs a recurrent model, {args.run} is {overlay.title}")
    content = page.build_page(
        f"Run {args.run}",
        f"{overlay.title if overlay else 'Training'}, as recorded in config.yaml and metrics.json",
        tiles(run),
        {
            "Scores": page.scores_html(run) + page.charts_html(charts.score_charts(run.scores)),
            "Training": training(run),
            "Samples": page.samples_html(samples) or page.note(f"Left out: {reason}"),
            "Steps of processing": page.charts_html(charts.course_charts(run.courses)) + steps_html(overlay, samples),
            "Configuration": page.configuration_html(run),
        },
    )
    with whole_file(output) as temporary:
        temporary.write_text(content, encoding="utf-8")
    logger.info("written to %s (%.1f MB)", output, os.path.getsize(output) / 1e6)


def sample_run(run: Run, args) -> tuple[Overlay | None, list[Sample], str]:
    """The run's model and its samples; None and none, with the reason, where they cannot be had."""
    weights = args.weights or last_weights(run.folder)
    config = os.path.join(run.folder, "config.yaml")
    try:
        overlay = load_overlay(config, [*args.opts, "MODEL.WEIGHTS", weights])
        shown = []
        if overlay.recurrent:
            shown = args.steps or default_steps(trained_steps(overlay.cfg))
        names = overlay.cfg.DATASETS.TEST
        if not names:
            raise ValueError("DATASETS.TEST names no data set")
        return overlay, list(draw_samples(overlay, names[0], args.samples, shown, _SIDE)), "--samples 0"
    except INPUT_ERRORS as error:
        reason = error_text(error)
        logger.warning("no samples: %s", reason)
        return None, [], reason


def last_weights(folder: str) -> str:
    """The newest checkpoint, which ``last_checkpoint`` names; without that file the one at the end of training."""
    tag = os.path.join(folder, "last_checkpoint")
    # a finished run that was resumed has newer checkpoints than its former model_final.pth
    if not os.path.isfile(tag):
        return os.path.join(folder, "model_final.pth")
    with open(tag) as file:
        return os.path.join(folder, file.read().strip())


def default_steps(trained: range) -> list[int]:
    """Steps 1 to twice those of training, thinned out where they are many, with the least and most trained ones among them."""
    last = 2 * trained[-1]
    stride = -(-last // _SHOWN_STEPS)
    return sorted({1, trained[0], trained[-1], *range(stride, last + 1, stride)})


def tiles(run: Run) -> dict[str, str]:
    """The most important numbers by label."""
    found = {}
    for task, score in (("panoptic_seg", "PQ"), ("pathfinder", "IoU")):
        for name, series in run.scores.items():
            if name.endswith(task) and score in series:
                dataset, slash, _ = name.rpartition("/")
                found[f"{score}, {dataset}" if slash else score] = page.number(series[score][1][-1])
    for label, name in (("total loss", "total_loss"), ("residual", "recurrent/residual")):
        if name in run.scalars:
            found[label] = page.number(run.scalars[name][1][-1])
    iterations = [series[0][-1] for series in run.scalars.values()]
    if iterations:
        found["iterations"] = f"{max(iterations):,}"
    return found


def training(run: Run) -> str:
    """Curves of losses, of the recurrent layers, of the schedule."""
    losses = charts.loss_chart(run.scalars)
    others = page.charts_html(charts.recurrent_charts(run.scalars) + charts.schedule_charts(run.scalars))
    return (page.charts_html([losses]) if losses else "") + others


def steps_html(overlay: Overlay | None, samples: list[Sample]) -> str:
    """A slider through time for each sample of a recurrent model."""
    figures = []
    for sample in (sample for sample in samples if sample.steps):
        pictures = {step: page.data_uri(picture) for step, picture in sample.steps.items()}
        size = sample.image.shape[1::-1]
        figures.append(charts.steps_chart(sample.name, pictures, size, trained_steps(overlay.cfg)))
    if not figures:
        return ""
    return page.note("Move the slider or press play. * marks the steps in training.") + page.charts_html(figures)


def parse_args(words: list[str] | None = None):
    """Arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="folder of the run (its OUTPUT_DIR)")
    parser.add_argument("--output", metavar="FILE", help="page to write (default: report.html in the run's folder)")
    parser.add_argument("--weights", metavar="FILE", help="checkpoint (default: the run's last one)")
    parser.add_argument("--samples", type=natural, default=4, help="images of DATASETS.TEST to show (default: 4)")
    parser.add_argument("--steps", type=step_list, help="to show, e.g. 1-10,20 (default: up to twice those of training)")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="KEY VALUE overrides of the configuration, last")
    return parser.parse_args(words)


if __name__ == "__main__":
    main(parse_args())
