"""Images of a registered data set beside their ground truth and a model's prediction."""

import os
from typing import Iterator, NamedTuple

import numpy as np
from detectron2.data import DatasetCatalog, MetadataCatalog
from tqdm import tqdm

from rfpn.analysis.figures import PanopticTruth, draw_contour, draw_panoptic, enlarge, side_by_side
from rfpn.analysis.overlay import Overlay, enlargement
from rfpn.data.images import read_image
from rfpn.data.pathfinder.mapper import PathfinderMapper


class Sample(NamedTuple):
    """Pictures (H, W, 3) RGB uint8 of one image, all of one size.

    truth: None where the data set has none that could be drawn. steps: the prediction by step of processing.
    """

    name: str
    image: np.ndarray
    truth: np.ndarray | None
    prediction: np.ndarray
    steps: dict[int, np.ndarray]

    def panels(self) -> dict[str, np.ndarray]:
        """Image, ground truth and prediction by title."""
        found = {"image": self.image, "ground truth": self.truth, "prediction": self.prediction}
        return {title: picture for title, picture in found.items() if picture is not None}

    def sheet(self) -> np.ndarray:
        """The panels side by side, (H, W, 3) RGB uint8."""
        panels = self.panels()
        return side_by_side(list(panels.values()), list(panels))


def draw_samples(
    overlay: Overlay, dataset_name: str, count: int, steps: list[int] | None = None, side: int = 320
) -> Iterator[Sample]:
    """Predict and draw the first images of a data set, as many at a time as the model is best given.

    Args:
        count: images. steps: those of processing whose predictions are drawn too. side: shorter side of pictures, at
            least, in pixels.

    Raises:
        KeyError: the data set is not registered. OSError, ValueError: naming the file that is missing or damaged.
    """
    records, read = DatasetCatalog.get(dataset_name), _reader(overlay, dataset_name)
    count = min(count, len(records))
    with tqdm(total=count, desc=f"samples of {dataset_name}", disable=None) as bar:
        for start in range(0, count, overlay.batch_size):
            batch = records[start : start + overlay.batch_size]
            images, truths = zip(*map(read, batch))
            outputs = overlay.predict(images)
            by_step = overlay.predict_steps(images, steps) if steps else {}
            for index in range(min(len(batch), count - start)):
                image, scale = images[index], enlargement(images[index], side)
                yield Sample(
                    os.path.basename(batch[index]["file_name"]),
                    enlarge(image, scale),
                    truths[index](scale),
                    overlay.draw(image, outputs[index], scale),
                    {step: overlay.draw(image, of_step[index], scale) for step, of_step in by_step.items()},
                )
                bar.update()


def _reader(overlay: Overlay, dataset_name: str):
    """A function of a record: the image, and what draws its ground truth at a scale."""
    metadata = MetadataCatalog.get(dataset_name)
    if metadata.get("evaluator_type") == "pathfinder":
        mapper = PathfinderMapper(overlay.cfg, False)

        def read(record):
            """A contour's image as the model sees it, RGB."""
            mapped = mapper(record)
            image = np.repeat(mapped["image"].numpy().transpose(1, 2, 0), 3, axis=2)
            return image, lambda scale: draw_contour(image, mapped["sem_seg"].numpy(), scale)

        return read
    truth = PanopticTruth(metadata) if metadata.get("panoptic_json") else None

    def read(record):
        """A photograph or scene as its file holds it, RGB."""
        image = read_image(record["file_name"], "RGB")
        if truth is None:
            return image, lambda scale: None
        return image, lambda scale: draw_panoptic(image, *truth(record["image_id"]), metadata, scale)

    return read
