"""Scores and residuals of recurrent models after each step of processing, all from one unrolling an image."""

from typing import Callable, Iterable, Iterator

import torch
from detectron2.evaluation import DatasetEvaluator, inference_context
from detectron2.modeling.meta_arch.panoptic_fpn import combine_semantic_and_instance_outputs
from detectron2.modeling.postprocessing import detector_postprocess, sem_seg_postprocess
from detectron2.modeling.roi_heads.mask_head import mask_rcnn_inference
from detectron2.structures import Instances
from detectron2.utils import comm
from torch import Tensor, nn
from tqdm import tqdm

from rfpn.analysis.unrolling import detect, pool_masks, recurrent_layer
from rfpn.modeling import PathfinderNet


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
    # counts steps, not batches: a step of a large batch can take seconds
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
    recurrent_layer(model)  # raises where there is none
    if not isinstance(model, PathfinderNet):
        yield from _panoptic_steps(model, inputs, steps)
        return
    for step, (logits, residual) in enumerate(model.time_course(inputs, max(steps)), start=1):
        if step in steps:
            yield step, [{"sem_seg": one} for one in logits], residual


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
