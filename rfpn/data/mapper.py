"""The dataset mapper of panoptic training: Detectron2's, with safe reading and checked labels."""

import copy

import torch
from detectron2.config import configurable
from detectron2.data import DatasetMapper, detection_utils
from detectron2.data import transforms as T
from detectron2.structures import BitMasks, Boxes, Instances, PolygonMasks

from rfpn.data.annotations import IGNORE_LABEL
from rfpn.data.architectures import predicted_things
from rfpn.data.images import read_image, read_semantic_map, to_tensor
from rfpn.data.records import check_classes, check_mask_format, check_masks, trained_on

# Of no use to models, and large.
_ANNOTATION_KEYS = ("annotations", "sem_seg_file_name", "pan_seg_file_name", "segments_info")


class PanopticMapper(DatasetMapper):
    """Maps dataset dicts to model inputs as :class:`detectron2.data.DatasetMapper` does, and beyond that

    - reads pictures with :func:`rfpn.data.images.read_image`: all modes, and errors that name the file;
    - checks the label map's values on the host, before they reach the device;
    - gives every training record ``instances`` with ``gt_boxes``, ``gt_classes`` and, where masks are trained on,
      ``gt_masks``, also where the picture has no instance or augmentation removes them all.
    """

    @configurable
    def __init__(
        self,
        is_train: bool,
        *,
        sem_seg_classes: int,
        thing_classes: int | None = None,
        thing_classes_key: str = "MODEL.ROI_HEADS.NUM_CLASSES",
        ignore_label: int = IGNORE_LABEL,
        **kwargs,
    ):
        """
        Args:
            is_train: training or inference.
            thing_classes: contiguous ids of instances lie in [0, thing_classes); None or 0 for no check.
            thing_classes_key: what errors call that number.
            sem_seg_classes: values of the label map lie in [0, sem_seg_classes) or equal ``ignore_label``.
            kwargs: as :class:`detectron2.data.DatasetMapper`.
        """
        super().__init__(is_train, **kwargs)
        self.sem_seg_classes = sem_seg_classes
        self.thing_classes, self.thing_classes_key = thing_classes, thing_classes_key
        self.ignore_label = ignore_label

    @classmethod
    def from_config(cls, cfg, is_train: bool = True):
        """Arguments from a config: the detection mapper's, and the numbers of classes.

        Raises:
            ValueError: for precomputed proposals, which this mapper does not read.
        """
        if cfg.MODEL.LOAD_PROPOSALS:
            raise ValueError("MODEL.LOAD_PROPOSALS must be False: precomputed proposals serve none of the models here")
        things, key = predicted_things(cfg)
        return {
            **super().from_config(cfg, is_train),
            "thing_classes": things,
            "thing_classes_key": key,
            "sem_seg_classes": cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES,
            "ignore_label": cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE,
        }

    def __call__(self, dataset_dict: dict) -> dict:
        """
        Returns:
            ``image`` (C, H, W) uint8 (float32 for YUV) and the record's own keys; in training also ``instances`` and,
            where the record has a label map, ``sem_seg`` (H, W) int64.

        Raises:
            FileNotFoundError, ValueError: a picture is missing, unreadable or too thin for resizing, or its labels are out
                of range.
        """
        record = copy.deepcopy(dataset_dict)
        image = read_image(record["file_name"], self.image_format)
        detection_utils.check_image_size(record, image)
        labels = None
        if self.is_train and "sem_seg_file_name" in record:
            classes = {"classes": self.sem_seg_classes, "ignore_label": self.ignore_label}
            labels = read_semantic_map(record["sem_seg_file_name"], image.shape[:2], **classes)
        annotations = record.get("annotations", [])
        for key in _ANNOTATION_KEYS:
            record.pop(key, None)

        augmented = T.AugInput(image, sem_seg=labels)
        try:
            transforms = self.augmentations(augmented)
        except Exception as error:  # Pillow and Detectron2 raise anything on extreme pictures
            raise ValueError(
                f"{record['file_name']}: {image.shape[1]}x{image.shape[0]} pixels cannot be resized or cropped as INPUT says "
                f"({error or type(error).__name__}); leave the picture out, or change INPUT.MAX_SIZE_* or INPUT.CROP"
            ) from error
        image, labels = augmented.image, augmented.sem_seg
        record["image"] = to_tensor(image)
        if labels is not None:
            record["sem_seg"] = torch.as_tensor(labels.astype("long"))
        if self.is_train:
            record["annotations"] = annotations
            self._transform_annotations(record, transforms, image.shape[:2])
        return record

    def _transform_annotations(self, dataset_dict: dict, transforms, image_shape: tuple) -> None:
        if not trained_on(dataset_dict):
            del dataset_dict["annotations"]
            dataset_dict["instances"] = self._no_instances(image_shape)
            return
        if self.use_instance_mask:
            check_mask_format([dataset_dict], self.instance_mask_format)
            check_masks([dataset_dict])
        if self.thing_classes:
            check_classes([dataset_dict], self.thing_classes, self.thing_classes_key)
        try:
            super()._transform_annotations(dataset_dict, transforms, image_shape)
        except Exception as error:  # Detectron2 and pycocotools raise anything on damaged masks and boxes
            raise ValueError(f"the instances of {dataset_dict['file_name']} are damaged ({error})") from error

    def _no_instances(self, image_shape: tuple) -> Instances:
        instances = Instances(image_shape, gt_boxes=Boxes(torch.zeros(0, 4)), gt_classes=torch.zeros(0).long())
        if self.use_instance_mask:
            polygon = self.instance_mask_format == "polygon"
            instances.gt_masks = PolygonMasks([]) if polygon else BitMasks(torch.zeros(0, *image_shape))
        return instances
