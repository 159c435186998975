#!/usr/bin/env python3
"""Scores after each epoch of Pathfinder runs, from their logs: a table on the console and a figure of curves.

    python tools/plot_pathfinder_runs.py --log "BPTT 6"=docs/results/pathfinder/pf14_bptt6.json \\
        --log "C-RBP 20"=docs/results/pathfinder/pf14_crbp20.json --output docs/results/pathfinder/pf14.png

Scores that are in no log, such as those of tools/evaluate_timesteps.py, join a run's curve: --score "BPTT 6"=5936:0.912
A run that began from another's weights, and counts anew, is drawn where that one ended: --start "BPTT 6, on"=4452
The log of a run that was evaluated on several sets gives a curve of each, which --score and --start call NAME, SET.
"""

import argparse
import itertools
import re

from matplotlib.figure import Figure

from arguments import add_logs, check_files, png_file, positive
from rfpn.analysis.courses import distinct_lines
from rfpn.analysis.logs import Series, read_log
from rfpn.programs import one_line_errors

_IOU = "pathfinder/IoU"
PANELS = {_IOU: "IoU on the test set", "total_loss": "training loss", "recurrent/residual": "residual"}


@one_line_errors()
def main() -> None:
    """Read the logs, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_logs(parser)
    parser.add_argument(
        "--score", type=score, action="append", default=[], metavar="NAME=ITERATION:IOU",
        help="IoU of the run NAME after so many iterations, beside those of its log, repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--start", type=start, action="append", default=[], metavar="NAME=ITERATION",
        help="iterations done before the first of the run NAME, whose log and scores count from there, repeatable",
    )  # fmt: skip
    parser.add_argument("--epoch", type=positive, default=1484, help="iterations of an epoch (default: 190,000 images by 128)")
    parser.add_argument("--output", type=png_file, help="PNG file of the curves")
    arguments = parser.parse_args()
    logs = add_scores(read_logs(arguments.log), arguments.score)
    for name, path in arguments.log:
        if _IOU not in logs.get(name, {_IOU}):
            wanted = f"give the log of a Pathfinder run that was evaluated, or --score {name}=ITERATION:IOU"
            raise ValueError(f"--log {name}={path}: has no {_IOU}; {wanted}")
    logs = shift(logs, arguments.start)
    print(table(logs, arguments.epoch))
    if arguments.output:
        draw(logs, arguments.epoch).savefig(arguments.output, dpi=110)


def score(word: str) -> tuple[str, int, float]:
    """Name of a run, iterations done and IoU in 0..1, from NAME=ITERATION:IOU."""
    found = re.fullmatch(r"([^=]+)=0*([1-9]\d*):(0?\.\d+|[01](?:\.0*)?)", word)
    if not found:
        raise argparse.ArgumentTypeError(f"{word!r} needs NAME=ITERATION:IOU, with an iteration from 1 and an IoU in 0..1")
    return found[1], int(found[2]), float(found[3])


def start(word: str) -> tuple[str, int]:
    """Name of a run and iterations done before it, from NAME=ITERATION."""
    found = re.fullmatch(r"([^=]+)=0*([1-9]\d*)", word)
    if not found:
        raise argparse.ArgumentTypeError(f"{word!r} needs NAME=ITERATION, with an iteration from 1")
    return found[1], int(found[2])


def read_logs(files: list[tuple[str, str]]) -> dict[str, dict[str, Series]]:
    """Iterations done and values by scalar, of each log by name. Raises OSError or ValueError naming what is at fault.

    A log with scores of several data sets counts as one of each, under "name, data set".
    """
    check_files("--log", files)
    logs = {}
    for name, path in files:
        log = read_log(path)
        sets = [key.removesuffix(f"/{_IOU}") for key in log if key.endswith(f"/{_IOU}")]
        # before it was resumed, a run may have been evaluated on one set, which the log does not name
        found = {name: log} if _IOU in log or not sets else {}
        found |= {f"{name}, {dataset}": {**log, _IOU: log[f"{dataset}/{_IOU}"]} for dataset in sets}
        if twice := found.keys() & logs.keys():
            raise ValueError(f"--log {name}={path}: {min(twice)} is another log's name; give this one another")
        logs |= found
    return logs


def add_scores(logs: dict[str, dict[str, Series]], scores: list[tuple[str, int, float]]) -> dict[str, dict[str, Series]]:
    """The logs with further scores in the series of IoU. ValueError for a score whose run has no log, or has it twice."""
    logs = {name: dict(log) for name, log in logs.items()}
    seen = set()
    for name, done, value in scores:
        if (name, done) in seen:
            raise ValueError(f"--score {name}={done}:{value}: each iteration of a run once")
        seen.add((name, done))
        if name not in logs:
            raise ValueError(f"--score {name}={done}:{value}: no --log has that name, but {'; '.join(logs)}")
        points = dict(zip(*logs[name].get(_IOU, ([], []))))
        points[done] = value
        logs[name][_IOU] = tuple(list(part) for part in zip(*sorted(points.items())))
    return logs


def shift(logs: dict[str, dict[str, Series]], starts: list[tuple[str, int]]) -> dict[str, dict[str, Series]]:
    """The logs with iterations counted from a run's start. ValueError for a start whose run has no log, or has two."""
    seen = set()
    for name, before in starts:
        if name not in logs or name in seen:
            unknown = f"no --log has that name, but {'; '.join(logs)}"
            raise ValueError(f"--start {name}={before}: {'each name once' if name in seen else unknown}")
        seen.add(name)
        shifted = {key: ([before + done for done in series[0]], series[1]) for key, series in logs[name].items()}
        logs = {**logs, name: shifted}
    return logs


def table(logs: dict[str, dict[str, Series]], epoch: int) -> str:
    """Markdown: a row for each run, its IoU at every evaluation."""
    rows = ["| run | IoU (epoch) |", "| --- | --- |"]
    for name, log in logs.items():
        found = zip(*log.get(_IOU, ([], [])))
        scores = (f"{value:.3f} ({iteration / epoch:.1f})" for iteration, value in found)
        rows.append(f"| {name} | {', '.join(scores)} |")
    return "\n".join(rows)


def draw(logs: dict[str, dict[str, Series]], epoch: int) -> Figure:
    """IoU, training loss and residual against epochs; the latter once for several data sets of one log."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharex=True)
    for axis, (key, label) in zip(axes, PANELS.items()):
        drawn = []
        for style, (name, log) in zip(itertools.cycle(distinct_lines()), logs.items()):
            series = iterations, values = log.get(key, ([], []))
            if key != _IOU and series in drawn:
                continue
            drawn.append(series)
            # a single point makes no line
            marker = "o" if key == _IOU or len(iterations) == 1 else None
            axis.plot([i / epoch for i in iterations], values, label=name, marker=marker, **style)
        axis.set(xlabel="epoch", ylabel=label, yscale="linear" if key == _IOU else "log")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(len(logs), 3))
    return figure


if __name__ == "__main__":
    main()
