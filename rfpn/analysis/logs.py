"""What the log of a run says: Detectron2's ``metrics.json``, one JSON object a line."""

import json
import logging

Series = tuple[list[int], list[float]]  # iterations done or steps of processing, values


def of_a_step(row: dict) -> bool:
    """Whether a line of a log is of a training step; others hold scores, the last of a run under one iteration more."""
    return not row.keys().isdisjoint(("total_loss", "skipped_steps"))


def read_log(path: str) -> dict[str, Series]:
    """Iterations done and values by scalar from the metrics.json of a run. Raises OSError or ValueError naming it."""
    found = read_metrics(path)
    if not found:
        raise ValueError(f"{path}: no log of a run, has no line with an iteration and a value")
    return found


def read_metrics(path: str) -> dict[str, Series]:
    """Iterations done and values by name from Detectron2's ``metrics.json``, one JSON object a line, which counts from 0.

    Lines that are broken, as a stopped run may leave one, or that hold what is no number, are left out with a warning.
    Where training goes back to an earlier iteration, resumed or started anew, what the log had from there on does not count.
    """
    values, broken, last = {}, 0, -1
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in filter(str.strip, file):
            try:
                row = json.loads(line)
                iteration = int(row.pop("iteration"))
                row = {name: float(value) for name, value in row.items()}
            except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
                broken += 1
                continue
            is_step = of_a_step(row)
            if is_step:
                if iteration <= last:
                    _forget(values, iteration)
                last = iteration
            # a run's last scores count the iterations done already, also where the run went on from there
            done = iteration + (is_step or iteration != last + 1)
            for name, value in row.items():
                values.setdefault(name, {})[done] = value
    if broken:
        logging.getLogger("rfpn").warning("%s: left out %d broken lines", path, broken)
    return {name: tuple(map(list, zip(*sorted(of_name.items())))) for name, of_name in sorted(values.items()) if of_name}


def _forget(values: dict[str, dict[int, float]], done: int) -> None:
    """Drop the values after so many iterations done."""
    for series in values.values():
        for later in [i for i in series if i > done]:
            del series[later]
