"""mIoU by Detectron2's evaluator, over label maps that hold nothing but classes and void."""

import numpy as np
from detectron2.evaluation import SemSegEvaluator

from rfpn.data.images import read_label_map, read_semantic_map
from rfpn.evaluation.outputs import required_output


class SemanticEvaluator(SemSegEvaluator):
    """Detectron2's evaluator with its ground truth checked: a value that is no class would count as another class."""

    def __init__(self, dataset_name: str, output_dir: str):
        """
        Args:
            output_dir: for predictions.
        """
        super().__init__(dataset_name, distributed=True, output_dir=output_dir)
        # "things" are no category, so that id maps may leave them out
        if self._contiguous_id_to_dataset_id is not None:
            self._contiguous_id_to_dataset_id.setdefault(0, 0)
        # upstream's main branch reads label maps in a way that NumPy 2 refuses; 0.6 does not look at this attribute
        self.sem_seg_loading_fn = _read_labels

    def process(self, inputs: list, outputs: list) -> None:
        """Takes N images' inputs (``file_name``) and outputs (``sem_seg``, (C, H, W)).

        Raises:
            FileNotFoundError: naming the label map that is missing.
            ValueError: naming the label map that is unreadable, or the picture whose prediction is missing or does not fit.
        """
        for record, output in zip(inputs, outputs):
            path = self.input_file_to_gt_file[record["file_name"]]
            shape = tuple(required_output(output, "sem_seg", record).shape)
            if len(shape) != 3 or shape[0] > self._num_classes:
                raise ValueError(
                    f"{record['file_name']}: the predicted sem_seg is of shape {shape}; it must be (classes, height, width), "
                    f"of {self._num_classes} classes at most"
                )
            labels = read_semantic_map(path, None, classes=self._num_classes, ignore_label=self._ignore_label)
            if labels.shape != shape[1:]:
                raise ValueError(
                    f"{path}: label map {labels.shape} does not fit the prediction {shape[1:]}; both must have the picture's "
                    "height and width, to which Detectron2's sem_seg_postprocess scales predictions"
                )
        super().process(inputs, outputs)


def _read_labels(path: str, dtype: type) -> np.ndarray:
    return read_label_map(path).astype(dtype)
