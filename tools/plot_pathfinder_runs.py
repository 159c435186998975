#!/usr/bin/env python3
"""Scores after each epoch of Pathfinder runs, from their logs: a table on the console and a figure of curves.

    python tools/plot_pathfinder_runs.py --log "BPTT 6"=docs/results/pathfinder/pf14_bptt6.json \\
        --log "C-RBP 20"=docs/results/pathfinder/pf14_crbp20.json --output docs/results/pathfinder/pf14.png
"""

import argparse

from matplotlib.figure import Figure

from arguments import add_logs, png_file, positive, read_log
from rfpn.analysis.report.run import Series
from rfpn.data.programs import one_line_errors

PANELS = {"pathfinder/IoU": "IoU on the test set", "total_loss": "training loss", "recurrent/residual": "residual"}


@one_line_errors()
def main() -> None:
    """Read the logs, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_logs(parser)
    parser.add_argument("--epoch", type=positive, default=1484, help="iterations of an epoch (default: 190,000 images by 128)")
    parser.add_argument("--output", type=png_file, help="PNG file of the curves")
    arguments = parser.parse_args()
    logs = read_logs(arguments.log)
    print(table(logs, arguments.epoch))
    if arguments.output:
        draw(logs, arguments.epoch).savefig(arguments.output, dpi=110)


def read_logs(files: list[tuple[str, str]]) -> dict[str, dict[str, Series]]:
    """Iterations and values by scalar, of each log by name. Raises OSError or ValueError naming what is at fault."""
    logs = {}
    for name, path in files:
        if name in logs:
            raise ValueError(f"--log {name}={path}: each name once")
        logs[name] = read_log(path)
    return logs


def table(logs: dict[str, dict[str, Series]], epoch: int) -> str:
    """Markdown: a row for each run, its IoU at every evaluation."""
    rows = ["| run | IoU (epoch) |", "| --- | --- |"]
    for name, log in logs.items():
        found = zip(*log.get("pathfinder/IoU", ([], [])))
        scores = (f"{value:.3f} ({(iteration + 1) / epoch:.1f})" for iteration, value in found)
        rows.append(f"| {name} | {', '.join(scores)} |")
    return "\n".join(rows)


def draw(logs: dict[str, dict[str, Series]], epoch: int) -> Figure:
    """IoU, training loss and residual against epochs."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    for axis, (key, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items()):
        for name, log in logs.items():
            iterations, values = log.get(key, ([], []))
            axis.plot([i / epoch for i in iterations], values, label=name, marker="o" if key == "pathfinder/IoU" else None)
        axis.set(xlabel="epoch", ylabel=label, yscale="linear" if key == "pathfinder/IoU" else "log")
        axis.grid(alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(logs), 3))
    return figure


if __name__ == "__main__":
    main()
