"""Tiny COCO panoptic sets written to disk, and their registration for one test."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from rfpn.data.panoptic_png import encode_ids

# Ids neither contiguous nor sorted; contiguous thing ids: cat 0, dog 1, cow 2; semantic ids: sky 1, road 2.
CATEGORIES = [
    {"id": 90, "name": "road", "isthing": 0},
    {"id": 7, "name": "dog", "isthing": 1},
    {"id": 3, "name": "cat", "isthing": 1},
    {"id": 40, "name": "sky", "isthing": 0},
    {"id": 60, "name": "cow", "isthing": 1},
]


def write_set(
    root: Path, layouts: list, categories: list = CATEGORIES, extension: str = "png", split: str = "train"
) -> Path:
    """Writes a set under ``root`` in COCO's layout and returns ``root``.

    Args:
        layouts: for each image, a list of (category id, box x0 y0 x1 y1, iscrowd) painted in order into 48x64 pixels;
            the rest is void.
    """
    for folder in (split, f"panoptic_{split}", "annotations"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    content = {"images": [], "annotations": [], "categories": categories}
    for number, layout in enumerate(layouts, start=1):
        ids = np.zeros((48, 64), dtype=np.int64)
        for k, (_, (x0, y0, x1, y1), _) in enumerate(layout, start=1):
            ids[y0:y1, x0:x1] = 1000 * k
        segments = [
            {"id": 1000 * k, "category_id": category, "iscrowd": crowd, "area": int((ids == 1000 * k).sum())}
            for k, (category, _, crowd) in enumerate(layout, start=1)
        ]
        picture = np.random.default_rng(number).integers(0, 255, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(picture).save(root / split / f"photo{number}.{extension}")
        Image.fromarray(encode_ids(ids)).save(root / f"panoptic_{split}" / f"label{number}.png")
        file_name = f"photo{number}.{extension}"
        content["images"].append({"id": number, "file_name": file_name, "height": 48, "width": 64})
        content["annotations"].append(
            {"image_id": number, "file_name": f"label{number}.png", "segments_info": segments}
        )
    (root / "annotations" / f"panoptic_{split}.json").write_text(json.dumps(content))
    return root


def mixed_layouts() -> list:
    """Two images: two things on sky and road, with some void; and a stuff-only image."""
    sky, road = (40, (0, 0, 64, 20), 0), (90, (0, 20, 64, 44), 0)
    return [[sky, road, (7, (4, 10, 24, 30), 0), (60, (30, 14, 50, 40), 0)], [sky, road]]


def edit_json(path: Path, change) -> None:
    """Applies ``change`` to the content of a JSON file, in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
