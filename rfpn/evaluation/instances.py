"""AP of boxes and masks by Detectron2's evaluator, over the images that were evaluated."""

import contextlib
import io
import itertools

from detectron2.evaluation import COCOEvaluator
from detectron2.utils import comm


class InstanceEvaluator(COCOEvaluator):
    """Detectron2's COCO evaluator for any subset of a JSON's images, any annotation ids, and without areas or crowd flags."""

    def __init__(self, dataset_name: str, tasks: tuple, output_dir: str):
        """
        Args:
            tasks: of "bbox", "segm". output_dir: for predictions.
        """
        super().__init__(dataset_name, tasks, distributed=True, output_dir=output_dir)
        # pycocotools takes a match with id 0 for none, and wants numbers
        for number, annotation in enumerate(self._coco_api.dataset.get("annotations", []), 1):
            annotation["id"] = number
            annotation.setdefault("iscrowd", 0)
            annotation.setdefault("area", annotation["bbox"][2] * annotation["bbox"][3])
        with contextlib.redirect_stdout(io.StringIO()):
            self._coco_api.createIndex()

    def evaluate(self, img_ids: list | None = None) -> dict:
        """Scores over ``img_ids``; None: over the images that all processes were given, not over all of the JSON."""
        if img_ids is None:
            seen = comm.all_gather([prediction["image_id"] for prediction in self._predictions])
            img_ids = sorted(set(itertools.chain(*seen)))
        return super().evaluate(img_ids)
