#!/usr/bin/env python3
"""Peak memory and time of a training step against steps of processing, from what tools/benchmark.py memory wrote.

    python tools/plot_memory.py pathfinder.json rfpn50.json --output docs/results/memory/memory.png

Prints the same as Markdown tables. A cross stands where a method ran out of memory, at the card's limit.
"""

import argparse

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from arguments import png_file
from rfpn.analysis.memory import MEASURED, OUT_OF_MEMORY
from rfpn.data.files import read_json
from rfpn.programs import one_line_errors

NAMES = {"bptt": "BPTT", "checkpointed_bptt": "BPTT, checkpointed", "rbp": "RBP", "crbp": "C-RBP"}
# curves that coincide stay visible
STYLES = {
    "bptt": {"color": "tab:red", "marker": "o"},
    "checkpointed_bptt": {"color": "tab:orange", "marker": "s"},
    "rbp": {"color": "tab:green", "marker": "D", "markersize": 9, "markerfacecolor": "none"},
    "crbp": {"color": "tab:blue", "marker": "."},
}
KEYS = {"work", "card", "card_gibibytes", "rows"}
_NUMBER = (int, float, type(None))
ROW = {"job": str, "method": str, "steps": _NUMBER, "milliseconds": _NUMBER, "gibibytes": _NUMBER, "outcome": str}
PANELS = {"gibibytes": "peak memory, GiB", "milliseconds": "training step, ms"}


@one_line_errors()
def main() -> None:
    """Read the files, print the tables, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="JSON files of tools/benchmark.py memory")
    parser.add_argument("--output", type=png_file, help="PNG file")
    arguments = parser.parse_args()
    sweeps = [read_sweep(path) for path in arguments.files]
    print("\n\n".join(table(sweep) for sweep in sweeps))
    if arguments.output:
        draw(sweeps).savefig(arguments.output, dpi=110)


def read_sweep(path: str) -> dict:
    """What tools/benchmark.py memory wrote. Raises OSError or ValueError naming a file that it did not."""
    try:
        sweep = read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; give what tools/benchmark.py memory wrote with --output") from None
    if not KEYS <= sweep.keys() or not isinstance(sweep["rows"], list):
        raise ValueError(f"{path} does not come from tools/benchmark.py memory")
    for index, row in enumerate(sweep["rows"]):
        if not _is_row(row):
            raise ValueError(f"{path}: rows[{index}] does not come from tools/benchmark.py memory")
    return sweep


def curves(sweep: dict) -> dict[tuple[str, str], list[dict]]:
    """Rows by (job, method), in the order of the file."""
    found = {}
    for row in sweep["rows"]:
        found.setdefault((row["job"], row["method"]), []).append(row)
    return found


def table(sweep: dict) -> str:
    """Markdown: a row for each curve, "GiB / ms" under each number of steps."""
    # a model without steps has one cell, under the fewest
    counts = sorted({row["steps"] for row in sweep["rows"] if row["steps"]}) or ["-"]
    lines = [f"{sweep['work']}, {sweep['card']}: GiB / ms", "", "| " + " | ".join(["T", *map(str, counts)]) + " |"]
    lines.append("| --- |" + " --- |" * len(counts))
    for key, rows in curves(sweep).items():
        cells = {row["steps"]: _cell(row) for row in rows}
        fixed = cells.pop(None, "")
        words = [cells.get(count, fixed if place == 0 else "") for place, count in enumerate(counts)]
        lines.append("| " + " | ".join([_label(sweep, key), *words]) + " |")
    return "\n".join(lines)


def draw(sweeps: list[dict]) -> Figure:
    """Memory and time beside each other, a row of panels for each sweep."""
    figure = Figure(figsize=(11, 3.9 * len(sweeps)), layout="constrained")
    for sweep, axes in zip(sweeps, figure.subplots(len(sweeps), 2, squeeze=False)):
        for axis, (key, label) in zip(axes, PANELS.items()):
            _draw_panel(axis, sweep, key)
            axis.set(title=_title(sweep), xlabel="steps of processing T", ylabel=label)
        # without CUDA there is no memory to show
        axes[1].legend(fontsize=8)
        if sweep["card_gibibytes"]:
            axes[0].legend(fontsize=8, loc="center left")
    return figure


def _is_row(row) -> bool:
    if not isinstance(row, dict) or not all(key in row and isinstance(row[key], kind) for key, kind in ROW.items()):
        return False
    return row["outcome"] != MEASURED or row["milliseconds"] is not None


def _draw_panel(axis: Axes, sweep: dict, key: str) -> None:
    axis.set(xscale="log", yscale="log")
    limit = sweep["card_gibibytes"] if key == "gibibytes" else None
    for name, rows in curves(sweep).items():
        style = STYLES.get(name[1], {"color": "gray"})
        points = [(row["steps"], row[key]) for row in rows if row["outcome"] == MEASURED and row[key] is not None]
        if points and points[0][0] is None:
            axis.axhline(points[0][1], linestyle="--", label=_label(sweep, name), **style)
        elif points:
            axis.plot(*zip(*points), label=_label(sweep, name), **style)
        failed = [row["steps"] for row in rows if row["outcome"] == OUT_OF_MEMORY and row["steps"]]
        if limit and failed:
            axis.plot(failed[0], limit, "x", color=style["color"], markersize=10, markeredgewidth=2.5, zorder=3)
            axis.plot(*zip(*points[-1:], (failed[0], limit)), ":", color=style["color"])
    if limit:
        axis.axhline(limit, color="black", linewidth=0.8)
        axis.annotate("the card's memory", (1, limit), (0, -10), textcoords="offset points", fontsize=8)
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(LogLocator(subs=(1, 2, 5)))
        side.set_major_formatter("{x:g}")
        side.set_minor_formatter("")
    axis.grid(alpha=0.3)


def _title(sweep: dict) -> str:
    return f"{sweep['work']}\n{sweep['card']}"


def _label(sweep: dict, name: tuple[str, str]) -> str:
    job, method = name
    if method not in NAMES:
        return job
    several = len({row["job"] for row in sweep["rows"]}) > 1
    return f"{job}, {NAMES[method]}" if several else NAMES[method]


def _cell(row: dict) -> str:
    if row["outcome"] != MEASURED:
        return row["outcome"]
    memory = "" if row["gibibytes"] is None else f"{row['gibibytes']:.2f} / "
    return f"{memory}{row['milliseconds']:.1f}"


if __name__ == "__main__":
    main()
