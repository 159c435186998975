#!/usr/bin/env python3
"""Final scores of runs from their logs as a Markdown table: mean and standard deviation over the logs of one name.

    python tools/tabulate_runs.py --log FPN=docs/results/panoptic/scenes_fpn_seed1.json \\
        --log FPN=docs/results/panoptic/scenes_fpn_seed2.json --scores panoptic_seg/PQ,segm/AP,loss_mask
"""

import argparse
import math
from statistics import mean, stdev

from arguments import add_logs, check_files
from rfpn.analysis.logs import Series, read_log
from rfpn.programs import one_line_errors

SCORES = [
    "panoptic_seg/PQ", "panoptic_seg/PQ_th", "panoptic_seg/PQ_st", "segm/AP", "loss_mask",
    "pathfinder/IoU", "recurrent/residual",
]  # fmt: skip
# iterations between lines of a log
LINE = 20


@one_line_errors()
def main() -> None:
    """Read the logs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_logs(parser)
    default = f"those of {','.join(SCORES)} that a log has, of each data set"
    parser.add_argument("--scores", help=f"columns, with commas between (default: {default})")
    arguments = parser.parse_args()
    runs = read_logs(arguments.log)
    scores = columns(arguments.scores, {score for logs in runs.values() for log in logs for score in log})
    values = last_values(runs, scores)
    print("\n".join([table(values, scores), *behind(runs, scores), *undefined(values, scores)]))


def columns(asked: str | None, found: set[str]) -> list[str]:
    """The scores asked for, or those of SCORES that were found. Raises ValueError naming what no log has."""
    # Detectron2 puts the data set's name before its scores where there are several
    own = [name for score in SCORES for name in sorted(found) if name == score or name.endswith(f"/{score}")]
    scores = asked.split(",") if asked else own or SCORES
    if missing := [score for score in scores if score not in found]:
        raise ValueError(f"--scores: no log has {', '.join(missing)}")
    return scores


def read_logs(files: list[tuple[str, str]]) -> dict[str, list[dict[str, Series]]]:
    """The logs of each name. Raises OSError or ValueError naming one that cannot be averaged with the others."""
    check_files("--log", files, several=True)
    runs, ends = {}, {}
    for name, path in files:
        log = read_log(path)
        runs.setdefault(name, []).append(log)
        last = max(iterations[-1] for iterations, _ in log.values())
        if ends.setdefault(name, last) != last:
            raise ValueError(f"--log {name}={path} ends at iteration {last}, another of that name at {ends[name]}")
    return runs


def last_values(runs: dict[str, list[dict[str, Series]]], scores: list[str]) -> dict[str, list[dict[str, float]]]:
    """The last value of each score in each log, by name. Raises ValueError where those of a name are of unlike iterations."""
    for name, logs in runs.items():
        for score in scores:
            if len(ends := {log[score][0][-1] for log in logs if score in log}) > 1:
                raise ValueError(f"--log {name}: logs have their last {score} at iterations {sorted(ends)}; give those of one")
    return {name: [{s: log[s][1][-1] for s in scores if s in log} for log in logs] for name, logs in runs.items()}


def behind(runs: dict[str, list[dict[str, Series]]], scores: list[str]) -> list[str]:
    """A line for each score that was taken before the end of its logs."""
    lines = []
    for name, logs in runs.items():
        end = max(iterations[-1] for iterations, _ in logs[0].values())
        at = {score: log[score][0][-1] for log in logs for score in scores if score in log}
        lines += [f"{name}: {score} is of iteration {i}, the log ends at {end}" for score, i in at.items() if end - i > LINE]
    return lines


def undefined(runs: dict[str, list[dict[str, float]]], scores: list[str]) -> list[str]:
    """A line for each score that is no number in some logs of a name, with the likely reason."""
    lines = []
    for name, logs in runs.items():
        for score in scores:
            lacking = sum(not math.isfinite(log.get(score, 0.0)) for log in logs)
            if lacking:
                reason = "AP is where nothing was found, PQ where the set has no such class, a loss where training diverged"
                lines.append(f"{name}: {score} is not a number in {lacking} of {len(logs)} runs ({reason}), so it has no mean")
    return lines


def table(runs: dict[str, list[dict[str, float]]], scores: list[str]) -> str:
    """Markdown: a row for each name, a column for each score; empty where a log of the name lacks it."""
    rows = [["run", "runs", *scores], ["---"] * (len(scores) + 2)]
    for name, logs in runs.items():
        rows.append([name, str(len(logs)), *(cell([log.get(score) for log in logs]) for score in scores)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(values: list[float | None]) -> str:
    """Mean ± standard deviation (n − 1), or the only value; "nan" where one is not finite, "" where one is None."""
    if None in values:
        return ""
    if not all(map(math.isfinite, values)):
        return "nan"
    style = ".1f" if abs(mean(values)) >= 10 else ".2g"
    spread = f" ± {stdev(values):{style}}" if len(values) > 1 else ""
    return f"{mean(values):{style}}{spread}"


if __name__ == "__main__":
    main()
