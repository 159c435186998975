"""Tables and figures of scores by step of processing."""

import csv
from typing import NamedTuple

from cycler import Cycler, cycler

from rfpn.data.files import write_csv


class Course(NamedTuple):
    """A model's scores on one data set.

    trained_steps: those that training drew from, empty where it is not known. scores: by step, and ``residual``, as
    :func:`rfpn.analysis.time_course.evaluate_time_course` gives them.
    """

    model: str
    dataset: str
    trained_steps: range
    scores: dict[int, dict[str, float]]


def write_courses(path: str, courses: list[Course]) -> None:
    """Write scores by model, data set and step as CSV: columns ``model``, ``dataset``, ``step``, one for each score."""
    rows = [
        {"model": model, "dataset": dataset, "step": step, **scores}
        for model, dataset, _, course in courses
        for step, scores in course.items()
    ]
    write_csv(path, rows)


def read_courses(path: str) -> list[Course]:
    """What :func:`write_courses` wrote, without the steps of training.

    Raises:
        OSError, ValueError: the file is missing, or no such table; all name it.
    """
    courses = {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, strict=True):
                model, dataset, step = row.pop("model"), row.pop("dataset"), int(row.pop("step"))
                course = courses.setdefault((model, dataset), Course(model, dataset, range(0), {}))
                if step in course.scores:
                    raise ValueError(f"step {step} of {model}, {dataset} stands there twice")
                course.scores[step] = {name: float(score) for name, score in row.items() if score}
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{path}: no scores by step as of tools/evaluate_timesteps.py ({error})") from None
    if not courses:
        raise ValueError(f"{path}: no scores by step, the table is empty")
    return list(courses.values())


def distinct_lines() -> Cycler:
    """Styles of a figure's lines in turn: ten colours, then the same ones with other dashes."""
    from matplotlib import colormaps

    return cycler(linestyle=["-", "--", "-.", ":"]) * cycler(color=colormaps["tab10"].colors)


def plot_courses(path: str, courses: list[Course], score: str) -> None:
    """Draw a score and, beside it, the residual against the step: a line for each model and data set.

    Rings mark the least and the most steps of training where they were evaluated, dotted lines of the same colour where not.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis in axes:
        axis.set_prop_cycle(distinct_lines())
    for course in courses:
        label = f"{course.model}, {course.dataset}"
        for axis, name in zip(axes, (score, "residual")):
            values = {step: scores.get(name, float("nan")) for step, scores in course.scores.items()}
            (line,) = axis.plot(list(values), list(values.values()), marker=".", markersize=3, linewidth=1, label=label)
            for step in {*course.trained_steps[:1], *course.trained_steps[-1:]}:
                if step in values:
                    axis.plot(step, values[step], "o", markersize=9, markerfacecolor="none", color=line.get_color())
                else:
                    axis.axvline(step, color=line.get_color(), linestyle=":", linewidth=1)
    axes[0].set(xlabel="step of processing", ylabel=score, ylim=(0, None))
    axes[1].set(xlabel="step of processing", ylabel="residual ‖h$_t$ − h$_{t-1}$‖ / ‖h$_t$‖")
    # without any detection there is no residual
    if any(scores.get("residual", 0) > 0 for course in courses for scores in course.scores.values()):
        axes[1].set_yscale("log")
    axes[0].legend(fontsize="small", title="ring: steps of training", title_fontsize="small")
    figure.savefig(path, dpi=120)
