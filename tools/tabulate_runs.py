#!/usr/bin/env python3
"""Final scores of runs from their logs as a Markdown table: mean and standard deviation over the logs of one name.

    python tools/tabulate_runs.py --log FPN=docs/results/panoptic/scenes_fpn_seed1.json \\
        --log FPN=docs/results/panoptic/scenes_fpn_seed2.json --scores panoptic_seg/PQ,segm/AP,loss_mask
"""

import argparse
import math
from statistics import mean, stdev

from arguments import add_logs, read_log
from rfpn.data.programs import one_line_errors

SCORES = ["panoptic_seg/PQ", "panoptic_seg/PQ_th", "panoptic_seg/PQ_st", "segm/AP", "loss_mask", "recurrent/residual"]


@one_line_errors()
def main() -> None:
    """Read the logs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_logs(parser)
    parser.add_argument("--scores", help=f"columns, with commas between (default: those of {','.join(SCORES)} that a log has)")
    arguments = parser.parse_args()
    runs = last_values(arguments.log)
    scores = columns(arguments.scores, {score for logs in runs.values() for log in logs for score in log})
    print(table(runs, scores))


def columns(asked: str | None, found: set[str]) -> list[str]:
    """The scores asked for, or those of SCORES that were found. Raises ValueError naming what no log has."""
    scores = asked.split(",") if asked else [score for score in SCORES if score in found] or SCORES
    if missing := [score for score in scores if score not in found]:
        raise ValueError(f"--scores: no log has {', '.join(missing)}")
    return scores


def last_values(files: list[tuple[str, str]]) -> dict[str, list[dict[str, float]]]:
    """The last value of each scalar in each log, by name. Raises OSError or ValueError naming one that cannot be averaged."""
    runs, ends = {}, {}
    for name, path in files:
        log = read_log(path)
        runs.setdefault(name, []).append({score: values[-1] for score, (_, values) in log.items()})
        last = max(iterations[-1] for iterations, _ in log.values())
        if ends.setdefault(name, last) != last:
            raise ValueError(f"--log {name}={path} ends at iteration {last}, another of that name at {ends[name]}")
    return runs


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
