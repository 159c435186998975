#!/usr/bin/env python3
"""One figure of scores by step that were measured apart, from the timesteps.csv of tools/evaluate_timesteps.py.

    python tools/plot_time_courses.py --csv "BPTT 3"=output/a/timesteps.csv --csv C-RBP=output/b/timesteps.csv \\
        --trained "BPTT 3"=3 --trained C-RBP=20-30 --output steps.png
"""

import argparse

from arguments import check_files, named_file, png_file, step_list
from rfpn.analysis.courses import Course, plot_courses, read_courses
from rfpn.evaluation import MAIN_SCORES
from rfpn.programs import one_line_errors


@one_line_errors()
def main() -> None:
    """Read the tables, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--csv", type=named_file, action="append", required=True, metavar="NAME=FILE",
        help="timesteps.csv of one model, or of several, of which NAME is one, repeatable; files of one NAME add up",
    )  # fmt: skip
    parser.add_argument(
        "--trained", type=named_steps, action="append", default=[], metavar="NAME=STEPS",
        help="steps of its training, such as 20-30, which get rings in the figure, repeatable",
    )  # fmt: skip
    parser.add_argument("--output", type=png_file, required=True, help="PNG file of the curves")
    arguments = parser.parse_args()
    trained = dict(arguments.trained)
    if len(trained) < len(arguments.trained):
        parser.error("--trained: each name once")
    courses = named_courses(arguments.csv, trained)
    plot_courses(str(arguments.output), courses, common_score(courses))


def named_steps(word: str) -> tuple[str, range]:
    """Name and steps from NAME=STEPS, such as C-RBP=20-30."""
    name, separator, text = word.rpartition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{word!r} needs NAME=STEPS")
    steps = step_list(text)
    return name, range(steps[0], steps[-1] + 1)


def named_courses(files: list[tuple[str, str]], trained: dict[str, range]) -> list[Course]:
    """Courses under the names given here; other steps of a name and data set join its curve.

    Raises:
        OSError, ValueError: naming what is at fault.
    """
    if unknown := trained.keys() - dict(files).keys():
        raise ValueError(f"--trained {min(unknown)}: no --csv has that name")
    check_files("--csv", files, several=True)
    courses: dict[tuple[str, str], Course] = {}
    for name, path in files:
        found = read_courses(path)
        if len(models := sorted({course.model for course in found})) > 1:
            found = [course for course in found if course.model == name]
            if not found:
                raise ValueError(f"--csv {name}={path}: has several models, {', '.join(models)}; NAME must be one of them")
        for _, dataset, _, scores in found:
            course = courses.get((name, dataset), Course(name, dataset, trained.get(name, range(0)), {}))
            if twice := course.scores.keys() & scores.keys():
                raise ValueError(f"--csv {name}={path}: another file of that name has step {min(twice)} of {dataset} too")
            courses[name, dataset] = course._replace(scores=dict(sorted((course.scores | scores).items())))
    return list(courses.values())


def common_score(courses: list[Course]) -> str:
    """The main score that all courses have. Raises ValueError where there is none."""
    for score in MAIN_SCORES.values():
        if all(score in scores for course in courses for scores in course.scores.values()):
            return score
    raise ValueError(f"--csv: the tables have none of {', '.join(MAIN_SCORES.values())} in common")


if __name__ == "__main__":
    main()
