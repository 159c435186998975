"""AP of boxes and masks by Detectron2's evaluator, over the images that were evaluated."""

import contextlib
import io
import itertools
import os

import pycocotools.mask as mask_util
from detectron2.data import MetadataCatalog
from detectron2.evaluation import COCOEvaluator
from detectron2.utils import comm

# detections of an image that COCO's AP counts, at least
_COCO_DETECTIONS = 100


class InstanceEvaluator(COCOEvaluator):
    """Detectron2's COCO evaluator for any subset of a JSON's images, any annotation ids, and without areas or crowd flags."""

    def __init__(self, dataset_name: str, tasks: tuple, output_dir: str, detections: int = _COCO_DETECTIONS):
        """
        Args:
            tasks: of "bbox", "segm". output_dir: for predictions.
            detections: those of an image that count, the surest first; 100 where it is less, as in COCO's AP.
        """
        metadata = MetadataCatalog.get(dataset_name)
        converted = not hasattr(metadata, "json_file")
        if converted:
            _forget_converted(dataset_name, output_dir)
        most = detections if detections > _COCO_DETECTIONS else None
        try:
            super().__init__(dataset_name, tasks, distributed=True, output_dir=output_dir, max_dets_per_image=most)
        finally:
            if converted:
                # this run's file, which a later run of the process may find gone, or of other records
                vars(metadata).pop("json_file", None)
        # pycocotools takes a match with id 0 for none, and wants numbers
        for number, annotation in enumerate(self._coco_api.dataset.get("annotations", []), 1):
            annotation["id"] = number
            annotation.setdefault("iscrowd", 0)
            if "area" not in annotation:
                annotation["area"] = self._area(annotation)
        with contextlib.redirect_stdout(io.StringIO()):
            self._coco_api.createIndex()

    def _area(self, annotation: dict) -> float:
        """Pixels of the mask, by which COCO tells small, medium and large objects; of the box where masks are not scored."""
        if "segm" in self._tasks and annotation.get("segmentation"):
            return float(mask_util.area(self._coco_api.annToRLE(annotation)))
        return annotation["bbox"][2] * annotation["bbox"][3]

    def evaluate(self, img_ids: list | None = None) -> dict:
        """Scores over ``img_ids``; None: over the images that all processes were given, not over all of the JSON."""
        if img_ids is None:
            seen = comm.all_gather([prediction["image_id"] for prediction in self._predictions])
            img_ids = sorted(set(itertools.chain(*seen)))
        return super().evaluate(img_ids)


def _forget_converted(dataset_name: str, output_dir: str) -> None:
    """Removes the JSON that Detectron2 makes for records that have none: an earlier run's may hold other records."""
    if comm.is_main_process():
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(output_dir, f"{dataset_name}_coco_format.json"))
    comm.synchronize()
