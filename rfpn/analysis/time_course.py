"""Scores of a recurrent model after each step of processing, all from one unrolling an image."""

import csv
import os
import re
from typing import Callable, Iterable, Iterator

import torch
from detectron2.evaluation import DatasetEvaluator, inference_context
from detectron2.modeling.meta_arch.panoptic_fpn import combine_semantic_and_instance_outputs
from detectron2.modeling.postprocessing import detector_postprocess, sem_seg_postprocess
from detectron2.modeling.roi_heads.mask_head import mask_rcnn_inference
from detectron2.structures import Instances
from torch import nn
from tqdm import tqdm


def parse_steps(text: str) -> list[int]:
    """Steps in ascending order from, say, "1-10,20,40".

    Raises:
        ValueError: a part is no step of at least 1 or no range of them.
    """
    steps = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise ValueError(f"--steps takes steps from 1 and ranges, as in 1-10,20,40; got {text!r}")
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
        loader: batches of model inputs, those of this process.
        steps: each at least 1.
        build_evaluator: called once for each step; the evaluator's results hold one task.

    Returns:
        Scores for each step; None but on the main process; no scores where there was nothing to evaluate.
    """
    evaluators = {step: build_evaluator() for step in steps}
    for evaluator in evaluators.values():
        evaluator.reset()
    with inference_context(model), torch.no_grad():
        for inputs in tqdm(loader, desc="time course", disable=None):
            for step, outputs in step_outputs(model, inputs, steps):
                evaluators[step].process(inputs, outputs)
    results = {step: evaluator.evaluate() for step, evaluator in evaluators.items()}
    if any(result is None for result in results.values()):
        return None
    return {step: {k: v for scores in result.values() for k, v in scores.items()} for step, result in results.items()}


def step_outputs(model: nn.Module, inputs: list[dict], steps: list[int]) -> Iterator[tuple[int, list[dict]]]:
    """Yield (step, outputs in the model's own format) in ascending order of ``steps``.

    Raises:
        ValueError: the model has no recurrent layer whose steps could be read out.
    """
    if hasattr(model, "time_course"):
        for step, logits in enumerate(model.time_course(inputs, max(steps)), start=1):
            if step in steps:
                yield step, [{"sem_seg": of_image} for of_image in logits]
    elif hasattr(getattr(getattr(model, "roi_heads", None), "mask_head", None), "recurrent"):
        yield from _panoptic_outputs(model, inputs, steps)
    else:
        raise ValueError(f"{type(model).__name__} has neither a recurrent mask head nor a time course of its own")


def _panoptic_outputs(model: nn.Module, inputs: list[dict], steps: list[int]) -> Iterator[tuple[int, list[dict]]]:
    """``panoptic_seg`` by step; backbone, boxes and the semantic branch run once."""
    images = model.preprocess_image(inputs)
    features = model.backbone(images.tensor)
    semantic, _ = model.sem_seg_head(features, None)
    proposals, _ = model.proposal_generator(images, features, None)
    heads = model.roi_heads
    # StandardROIHeads' own box branch: its forward would run the mask head too
    instances = heads._forward_box(features, proposals)
    boxes = [found.pred_boxes for found in instances]
    pooled = heads.mask_pooler([features[name] for name in heads.mask_in_features], boxes)
    sizes = [(x.get("height", size[0]), x.get("width", size[1])) for x, size in zip(inputs, images.image_sizes)]
    labels = [
        sem_seg_postprocess(logits, size, *output_size).argmax(dim=0)
        for logits, size, output_size in zip(semantic, images.image_sizes, sizes)
    ]
    for step, hidden in enumerate(heads.mask_head.recurrent.unroll(pooled, max(steps)), start=1):
        if step in steps:
            mask_rcnn_inference(heads.mask_head.layers(hidden), instances)
            yield step, [
                {"panoptic_seg": _combine(model, found, label, size)}
                for found, label, size in zip(instances, labels, sizes)
            ]


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


def write_csv(path: str, courses: dict[str, dict[int, dict[str, float]]]) -> None:
    """Write scores by data set and step: columns ``dataset``, ``step`` and one for each score."""
    names = list(dict.fromkeys(name for course in courses.values() for scores in course.values() for name in scores))
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, ["dataset", "step", *names])
        writer.writeheader()
        for dataset, course in courses.items():
            writer.writerows({"dataset": dataset, "step": step, **scores} for step, scores in course.items())


def plot_time_course(
    path: str, courses: dict[str, dict[int, dict[str, float]]], score: str, trained_steps: int | None = None
) -> None:
    """Draw one score against the step, a line for each data set and a dotted one at the steps of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    for dataset, course in courses.items():
        axes.plot(list(course), [scores.get(score, float("nan")) for scores in course.values()], ".-", label=dataset)
    if trained_steps is not None:
        axes.axvline(trained_steps, color="grey", linestyle=":", label="steps in training")
    axes.set(xlabel="step of processing", ylabel=score, ylim=(0, None))
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
