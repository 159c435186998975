"""What a run's folder tells: configuration, scalars of training, scores of its evaluations."""

import logging
import os
from typing import NamedTuple

from rfpn.analysis.courses import read_courses
from rfpn.analysis.logs import Series, read_metrics
from rfpn.config import get_cfg, read_settings, settings_of
from rfpn.evaluation import TASKS


class Run(NamedTuple):
    """A run.

    settings: value by dotted key; empty without ``config.yaml``. changed: keys whose value is not the default.
    scalars: series by name, scores left out. scores: series by task (with its data set where there are several) and
    name of the score; those of single classes are called ``score-class``. courses: series over steps of processing by
    model and data set and by score, where tools/evaluate_timesteps.py has written them.
    """

    folder: str
    settings: dict[str, object]
    changed: list[str]
    scalars: dict[str, Series]
    scores: dict[str, dict[str, Series]]
    courses: dict[str, dict[str, Series]]


def totals_of(scores: dict[str, Series]) -> dict[str, Series]:
    """The scores of a task without those of single classes."""
    return {name: series for name, series in scores.items() if "-" not in name}


def read_run(folder: str) -> Run:
    """Read ``config.yaml`` and ``metrics.json``, of which one may be missing.

    Raises:
        FileNotFoundError: the folder or both files are missing. ValueError: naming the file that is damaged.
    """
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{os.path.abspath(folder)}: no such folder")
    config, metrics = (os.path.join(folder, name) for name in ("config.yaml", "metrics.json"))
    if not (os.path.isfile(config) or os.path.isfile(metrics)):
        raise FileNotFoundError(f"{os.path.abspath(folder)}: no run, has neither config.yaml nor metrics.json")
    settings = read_settings(config) if os.path.isfile(config) else {}
    defaults = settings_of(get_cfg())
    changed = [key for key, value in settings.items() if key not in defaults or defaults[key] != value]
    scalars, scores = {}, {}
    for name, series in (read_metrics(metrics) if os.path.isfile(metrics) else {}).items():
        task, score = _task(name)
        if task:
            scores.setdefault(task, {})[score] = series
        else:
            scalars[name] = series
    ordered = {task: scores[task] for task in sorted(scores, key=lambda task: TASKS.index(task.rpartition("/")[2]))}
    return Run(folder, settings, changed, scalars, ordered, _courses(os.path.join(folder, "timesteps", "timesteps.csv")))


def _courses(path: str) -> dict[str, dict[str, Series]]:
    """Series over steps by model and data set and by score; a table that cannot be read is left out, with a warning."""
    courses: dict[str, dict[str, Series]] = {}
    try:
        found = read_courses(path) if os.path.isfile(path) else []
    except ValueError as error:
        logging.getLogger("rfpn").warning("left out: %s", error)
        return {}
    for model, dataset, _, by_step in found:
        series = courses.setdefault(f"{model}, {dataset}", {})
        for step, scores in by_step.items():
            for score, value in scores.items():
                steps, values = series.setdefault(score, ([], []))
                steps.append(step)
                values.append(value)
    return courses


def _task(name: str) -> tuple[str, str]:
    """Task, with its data set where there are several, and score of a scalar's name; no task where it is no score's."""
    parts = name.split("/")
    # names of data sets and of classes may have a slash as well
    place = max((i for i, part in enumerate(parts[:-1]) if part in TASKS), default=None)
    return ("", name) if place is None else ("/".join(parts[: place + 1]), "/".join(parts[place + 1 :]))
