"""Scores and residuals of recurrent models after each step of processing, all from one unrolling an image."""

import csv
import re
from typing import Callable, Iterable, Iterator, NamedTuple

import torch
from detectron2.evaluation import DatasetEvaluator, inference_context
from detectron2.modeling.meta_arch.panoptic_fpn import combine_semantic_and_instance_outputs
from detectron2.modeling.postprocessing import detector_postprocess, sem_seg_postprocess
from detectron2.modeling.roi_heads.mask_head import mask_rcnn_inference
from detectron2.structures import Instances
from detectron2.utils import comm
from torch import Tensor, nn
from tqdm import tqdm

from rfpn.analysis.unrolling import detect, layer_drive, pool_masks, recurrent_layer
from rfpn.data.files import write_csv
from rfpn.modeling import PathfinderNet

# each has an evaluator of its own
_MOST_STEPS = 10_000


class Course(NamedTuple):
    """A model's scores on one data set.

    trained_steps: those that training drew from, empty where it is not known. scores: by step, as :func:`evaluate_time_course` gives them.
    """

    model: str
    dataset: str
    trained_steps: range
    scores: dict[int, dict[str, float]]


def parse_steps(text: str, argument: str = "--steps") -> list[int]:
    """Steps in ascending order from, say, "1-10,20,40"; errors name ``argument``.

    Raises:
        ValueError: a part is no step from 1 to 10,000 or no range of them.
    """
    steps = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= _MOST_STEPS:
            raise ValueError(f"{argument} takes steps from 1 to {_MOST_STEPS} and ranges, as in 1-10,20,40; got {text!r}")
        steps.update(range(first, last + 1))
    return sorted(steps)


def evaluate_time_course(
    model: nn.Module,
    loader: Iterable[list[dict]],
    steps: list[int],
    build_evaluator: Callable[[], DatasetEvaluator],
) -> dict[int, dict[str, float]] | None:
    """Score a model at several numbers of steps in one pass over a data set.

    Args:
        model: a Pathfinder model or a panoptic FPN with a recurrent mask head.
        loader: batches of model inputs, those of this process; it has a length.
        steps: each at least 1.
        build_evaluator: called once for each step; the evaluator's results hold one task.

    Returns:
        For each step the scores, and ``residual``: mean over images or RoIs of ‖h_t − h_{t−1}‖/‖h_t‖. None but on the
        main process; no scores where there was nothing to evaluate.
    """
    evaluators = {step: build_evaluator() for step in steps}
    residuals = {step: [] for step in steps}
    for evaluator in evaluators.values():
        evaluator.reset()
    # by steps: one of a large batch can take seconds
    bar = tqdm(total=len(loader) * len(evaluators), desc="time course", unit="step", disable=None)
    with inference_context(model), torch.no_grad(), bar:
        for inputs in loader:
            for step, outputs, residual in _steps_and_residuals(model, inputs, steps):
                evaluators[step].process(inputs, outputs)
                residuals[step].append(residual.cpu())
                bar.update()
    results = {step: evaluator.evaluate() for step, evaluator in evaluators.items()}
    residuals = _gather({step: torch.cat(parts).tolist() if parts else [] for step, parts in residuals.items()})
    if not comm.is_main_process():
        return None
    return {
        step: {
            **{name: score for scores in result.values() for name, score in scores.items()},
            **({"residual": sum(residuals[step]) / len(residuals[step])} if residuals[step] else {}),
        }
        for step, result in results.items()
    }


def _gather(values: dict[int, list[float]]) -> dict[int, list[float]]:
    """Lists by step, joined over all processes on the main one."""
    return {step: [x for part in comm.gather(mine) for x in part] for step, mine in values.items()}


def step_outputs(model: nn.Module, inputs: list[dict], steps: list[int]) -> Iterator[tuple[int, list[dict]]]:
    """Yield (step, outputs in the model's own format) in ascending order of ``steps``.

    Raises:
        ValueError: the model has no recurrent layer whose steps could be read out.
    """
    for step, outputs, _ in _steps_and_residuals(model, inputs, steps):
        yield step, outputs


def _steps_and_residuals(model, inputs: list[dict], steps: list[int]) -> Iterator[tuple[int, list[dict], Tensor]]:
    """(step, outputs, residual (R,)) in ascending order of ``steps``."""
    layer = recurrent_layer(model)
    if not isinstance(model, PathfinderNet):
        yield from _panoptic_steps(model, inputs, steps)
        return
    drive, _ = layer_drive(model, inputs)
    for step, (hidden, residual) in enumerate(layer.unroll(drive, max(steps)), start=1):
        if step in steps:
            yield step, [{"sem_seg": logits} for logits in model.logits(hidden)], residual


def _panoptic_steps(model: nn.Module, inputs: list[dict], steps: list[int]) -> Iterator[tuple[int, list[dict], Tensor]]:
    """``panoptic_seg`` by step; backbone, boxes and the semantic branch run once. ValueError without semantic branch."""
    if not hasattr(model, "sem_seg_head"):
        raise ValueError(f"{type(model).__name__} has no semantic branch, which PQ needs; see MODEL.META_ARCHITECTURE")
    features, instances = detect(model, inputs)
    semantic, _ = model.sem_seg_head(features, None)
    image_sizes = [found.image_size for found in instances]
    sizes = [(x.get("height", size[0]), x.get("width", size[1])) for x, size in zip(inputs, image_sizes)]
    labels = [
        sem_seg_postprocess(logits, size, *output_size).argmax(dim=0)
        for logits, size, output_size in zip(semantic, image_sizes, sizes)
    ]
    head = model.roi_heads.mask_head
    pooled = pool_masks(model, features, [found.pred_boxes for found in instances])
    for step, (hidden, residual) in enumerate(head.recurrent.unroll(pooled, max(steps)), start=1):
        if step in steps:
            mask_rcnn_inference(head.layers(hidden), instances)
            outputs = [
                {"panoptic_seg": _combine(model, found, label, size)}
                for found, label, size in zip(instances, labels, sizes)
            ]
            yield step, outputs, residual


def _combine(model: nn.Module, instances: Instances, labels: torch.Tensor, size: tuple[int, int]) -> tuple:
    copy = Instances(instances.image_size, **instances.get_fields())
    copy.pred_boxes = instances.pred_boxes.clone()  # postprocessing rescales them in place
    return combine_semantic_and_instance_outputs(
        detector_postprocess(copy, *size),
        labels,
        model.combine_overlap_thresh,
        model.combine_stuff_area_thresh,
        model.combine_instances_score_thresh,
    )


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
                course.scores[step] = {name: float(score) for name, score in row.items() if score}
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{path}: no scores by step as of tools/evaluate_timesteps.py ({error})") from None
    if not courses:
        raise ValueError(f"{path}: no scores by step, the table is empty")
    return list(courses.values())


def plot_time_course(path: str, courses: list[Course], score: str) -> None:
    """Draw a score and, beside it, the residual against the step: a line for each model and data set.

    Rings mark the least and the most steps of training where they were evaluated, dotted lines of the same colour where not.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots(1, 2)
    for course in courses:
        label = f"{course.model}, {course.dataset}"
        for axis, name in zip(axes, (score, "residual")):
            values = {step: scores.get(name, float("nan")) for step, scores in course.scores.items()}
            (line,) = axis.plot(list(values), list(values.values()), ".-", markersize=3, linewidth=1, label=label)
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
