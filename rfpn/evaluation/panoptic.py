"""Panoptic quality in Detectron2, and a self-test that feeds the ground truth back as prediction."""

import itertools
import json
import logging
import os
import tempfile
from collections import OrderedDict
from functools import partial

import torch
from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog
from detectron2.evaluation import COCOPanopticEvaluator
from detectron2.modeling.meta_arch.panoptic_fpn import combine_semantic_and_instance_outputs
from detectron2.structures import Instances
from detectron2.utils import comm
from tabulate import tabulate

from rfpn.data.annotations import read_panoptic_json
from rfpn.data.check import check_metadata
from rfpn.data.files import first_few
from rfpn.data.mapper import PanopticMapper
from rfpn.data.panoptic_png import MAX_ID
from rfpn.evaluation.outputs import required_output
from rfpn.evaluation.pq import GROUPS, score_panoptic

logger = logging.getLogger(__name__)

_SUFFIXES = {"All": "", "Things": "_th", "Stuff": "_st"}


class PanopticEvaluator(COCOPanopticEvaluator):
    """PQ, SQ, RQ of All, Things (``_th``) and Stuff (``_st``), in percent, under the key ``panoptic_seg``.

    A group of which no category occurs (a set without stuff, say) scores NaN, with 0 categories in the table; "All"
    is then the other group. See :func:`rfpn.evaluation.pq.score_panoptic` for the ground truth's checks.

    Images whose records in the JSON bear one of ``flags`` are scored apart from the others as well, under the flag's
    name and under ``no_`` and that name: PQ and the mean number of things in an image that were found where there is
    none (``false_things``) and not found (``missed_things``). Sets without the flag have no such scores.
    """

    def __init__(
        self,
        dataset_name: str,
        output_dir: str | None = None,
        *,
        workers: int | None = None,
        flags: tuple[str, ...] = (),
    ):
        """
        Args:
            dataset_name: a registered panoptic set.
            output_dir: folder for ``predictions.json``; default: not kept.
            workers: processes of the scoring, at most one a CPU and one an image; default: one for 25 images.
            flags: keys of images' records, such as the scenes' ``texture_conflict``.
        """
        super().__init__(dataset_name, output_dir)
        self._workers = workers
        self._flags = flags
        things, stuff = self._thing_contiguous_id_to_dataset_id, self._stuff_contiguous_id_to_dataset_id
        # isthing -> values that category_id may have; dataset id 0 is no category, it stands for "things"
        self._known = {
            True: set(things),
            False: {number for number, category in stuff.items() if category != 0},
            None: {*things.values(), *stuff.values()} - {0},
        }

    def process(self, inputs: list, outputs: list) -> None:
        """Takes N images' inputs (``image_id``, ``file_name``, ``height``, ``width``) and outputs.

        Args:
            outputs: dicts with ``panoptic_seg``: a map (H, W) of the picture's size, and Detectron2's ``segments_info``.

        Raises:
            ValueError: naming the picture whose output is missing or of another size, or whose listed segments have ids or
                categories that are none.
        """
        cleaned = []
        for record, output in zip(inputs, outputs):
            panoptic_seg, segments_info = required_output(output, "panoptic_seg", record)
            _check_size(panoptic_seg, record)
            if segments_info is not None:
                panoptic_seg, segments_info = scored_segments(panoptic_seg, segments_info, self._metadata, record["file_name"])
                self._check_categories(segments_info, record["file_name"])
            # panopticapi divides by 256, which a map of 8 bits cannot hold
            cleaned.append({"panoptic_seg": (panoptic_seg.int(), segments_info)})
        super().process(inputs, cleaned)

    def _check_categories(self, segments_info: list, name: str) -> None:
        for segment in segments_info:
            category, isthing = segment.get("category_id"), segment.get("isthing")
            known = self._known[isthing]
            if category not in known:
                raise ValueError(
                    f"{name}: a predicted segment with isthing {isthing} has category_id {category}; "
                    f"it must be one of {first_few(sorted(known)) or 'none'}"
                )

    def evaluate(self) -> dict | None:
        """Scores what all processes collected; returns the results on the main process, None elsewhere."""
        comm.synchronize()
        predictions = list(itertools.chain(*comm.gather(self._predictions)))
        self._predictions = []
        if not comm.is_main_process():
            return None
        gt = read_panoptic_json(self._metadata.panoptic_json)
        file_names = {a["image_id"]: a["file_name"] for a in gt["annotations"]}
        predictions = [p for p in predictions if p["image_id"] in file_names]
        with tempfile.TemporaryDirectory(prefix="panoptic_eval") as folder:
            for prediction in predictions:
                # The ground truth's own name: base names of two images may be the same.
                prediction["file_name"] = file_names[prediction["image_id"]]
                path = os.path.join(folder, prediction["file_name"])
                os.makedirs(os.path.dirname(path), exist_ok=True)
                try:
                    with open(path, "wb") as f:
                        f.write(prediction.pop("png_string"))
                except OSError as error:
                    # says that it is not OUTPUT_DIR that is full
                    raise OSError(error.errno, f"{error.strerror}; TMPDIR names another folder", path) from None
            if self._output_dir:
                with open(os.path.join(self._output_dir, "predictions.json"), "w") as f:
                    json.dump({**gt, "annotations": predictions}, f)
            score = partial(
                score_panoptic,
                gt_folder=self._metadata.panoptic_root,
                predictions=predictions,
                pred_folder=folder,
                workers=self._workers,
            )
            quality = score(gt)
            subsets = {name: (len(part["annotations"]), score(part)) for name, part in _subsets(gt, self._flags).items()}
        if quality["area_mismatches"]:
            logger.warning(
                f"{self._metadata.panoptic_json}: {quality['area_mismatches']} segments' 'area' is not their number of "
                "pixels; counted anew"
            )
        _log_table(quality)
        results = OrderedDict(panoptic_seg=_percent(quality, ("pq", "sq", "rq")))
        for name, (images, part) in subsets.items():
            things = {f"{key}_things": part["segments"]["Things"][key] / images for key in ("false", "missed")}
            results[name] = {**_percent(part, ("pq",)), **things, "images": images}
        return results


def _percent(quality: dict, keys: tuple) -> dict:
    """Qualities of all groups in percent, by the names that are logged."""
    return {f"{k.upper()}{suffix}": 100 * quality[g][k] for g, suffix in _SUFFIXES.items() for k in keys}


def _subsets(gt: dict, flags: tuple) -> dict:
    """The panoptic JSON cut to the images that bear a flag, and to those that do not, by name; empty ones left out."""
    subsets = {}
    for flag in flags:
        flagged = {image["id"] for image in gt["images"] if image.get(flag)}
        if not flagged:
            continue
        for name, wanted in ((flag, True), (f"no_{flag}", False)):
            annotations = [a for a in gt["annotations"] if (a["image_id"] in flagged) == wanted]
            if annotations:
                subsets[name] = {**gt, "annotations": annotations}
    return subsets


def _check_size(panoptic_seg: torch.Tensor, record: dict) -> None:
    size, wanted = tuple(panoptic_seg.shape), (record.get("height"), record.get("width"))
    if None not in wanted and size != wanted:
        raise ValueError(
            f"{record['file_name']}: the predicted panoptic_seg is of size {size}, its picture of {wanted} (height, width); "
            "scale the model's logits with Detectron2's sem_seg_postprocess first"
        )


def visible_segments(panoptic_seg: torch.Tensor, segments_info: list, name: str) -> list:
    """The segments of (H, W) ``panoptic_seg`` that have a pixel.

    Detectron2's merging lists a segment even where others cover it wholly, if STUFF_AREA_LIMIT is 0 or
    OVERLAP_THRESH is 1; panopticapi refuses those.

    Raises:
        ValueError: an id is below 1 (0 is void) or above 2²⁴ − 1, or a non-zero pixel's id is not listed.
    """
    # The evaluator takes these apart, so the model's own dicts are left whole.
    segments_info = [_plain(s) for s in segments_info]
    present = set(torch.unique(panoptic_seg).tolist())
    listed = {s["id"] for s in segments_info}
    if any(not 1 <= i <= MAX_ID for i in listed | present - {0}):
        raise ValueError(f"{name}: predicted segment ids must lie in [1, {MAX_ID}]")
    if present - listed - {0}:
        raise ValueError(f"{name}: predicted pixels carry unlisted ids {sorted(present - listed - {0})[:5]}")
    return [s for s in segments_info if s["id"] in present]


def _plain(segment: dict) -> dict:
    """A copy with Python's own numbers: Detectron2 takes an ``isthing`` of 1, or of NumPy, for stuff."""
    kinds = {"id": int, "category_id": int, "isthing": bool}
    # JSON holds neither tensors nor NumPy's numbers, as scores may be
    segment = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in segment.items()}
    return {name: kinds[name](value) if name in kinds and value is not None else value for name, value in segment.items()}


def scored_segments(panoptic_seg: torch.Tensor, segments_info: list, metadata: Metadata, name: str) -> tuple:
    """A map (H, W) and its :func:`visible_segments`, as a set of this ``metadata`` scores and draws them.

    Where it has no things, instances become void: there is no category for what a model's box head still finds.
    """
    segments_info = visible_segments(panoptic_seg, segments_info, name)
    if metadata.get("thing_classes"):
        return panoptic_seg, segments_info
    things = [s["id"] for s in segments_info if s.get("isthing")]
    found = torch.isin(panoptic_seg, torch.tensor(things, dtype=panoptic_seg.dtype, device=panoptic_seg.device))
    return panoptic_seg.masked_fill(found, 0), [s for s in segments_info if not s.get("isthing")]


def _log_table(quality: dict) -> None:
    rows = [[g] + [100 * quality[g][k] for k in ("pq", "sq", "rq")] + [quality[g]["n"]] for g in GROUPS]
    table = tabulate(
        rows, headers=["", "PQ", "SQ", "RQ", "#categories"], tablefmt="pipe", floatfmt=".3f", numalign="center"
    )
    logger.info("Panoptic Evaluation Results:\n" + table)


def self_test(dataset_name: str, *, at_least: float = 100 - 1e-6) -> dict:
    """Scores a set's ground truth as its own prediction, through the mapper's labels and the evaluator's id maps.

    Where class ids or label maps are shifted against the JSON, losses look good and PQ is low; this test finds it
    before training.

    Args:
        at_least: PQ, in percent, that "All" must reach. Instances given as polygons, such as COCO's own, overlap and
            differ slightly from the panoptic PNGs: lower it for them.

    Returns:
        The evaluator's results.

    Raises:
        KeyError: no data set has that name. ValueError: its metadata are incomplete, or PQ is lower.
    """
    check_metadata(dataset_name)
    metadata = MetadataCatalog.get(dataset_name)
    evaluator = PanopticEvaluator(dataset_name)
    evaluator.reset()
    mapper = PanopticMapper(
        True,
        augmentations=[],
        image_format="BGR",
        use_instance_mask=True,
        instance_mask_format="bitmask",
        sem_seg_classes=len(metadata.stuff_classes),
        ignore_label=metadata.ignore_label,
    )
    for record in DatasetCatalog.get(dataset_name):
        truth = _truth_as_prediction(mapper(record), metadata.ignore_label)
        evaluator.process([record], [{"panoptic_seg": truth}])
    results = evaluator.evaluate()
    pq = results["panoptic_seg"]["PQ"]
    if not pq >= at_least:
        raise ValueError(
            f"dataset '{dataset_name}': its ground truth scores PQ {pq:.2f} against itself, not {at_least:.2f}; check "
            f"the label maps in {metadata.sem_seg_root} (0 things, 1..n stuff in ascending category id), the id maps, and "
            "that no kind of stuff is more than one segment of an image; PQ is nan where all is crowd or void"
        )
    return results


def _truth_as_prediction(mapped: dict, ignore_label: int) -> tuple:
    """``panoptic_seg`` and ``segments_info`` that a perfect model would give for one mapped training record."""
    truth = mapped["instances"]
    instances = Instances(
        truth.image_size,
        pred_masks=truth.gt_masks.tensor.bool(),
        pred_classes=truth.gt_classes,
        scores=torch.ones(len(truth)),
    )
    semantic = mapped["sem_seg"].masked_fill(mapped["sem_seg"] == ignore_label, 0)
    return combine_semantic_and_instance_outputs(
        instances, semantic, overlap_threshold=0.5, stuff_area_thresh=0, instances_score_thresh=0.0
    )
