"""Registers the project's own sets under ``$DETECTRON2_DATASETS`` (default ``./datasets``) on import.

Names: ``scenes_panoptic_{train,val}`` in ``scenes/``, ``dsb2018_panoptic_{train,val}`` in ``dsb2018_panoptic/``,
``pathfinder_<L>_{train,test}`` in ``pathfinder/``, ``pathfinder_easy_{train,test}`` in ``pathfinder_easy/``.
Detectron2 itself registers ``coco_2017_{train,val}_panoptic_separated``. A name that is taken already is left alone.
Last, modules of ``$RFPN_IMPORT`` (names with commas between) are imported, which may register further sets.
"""

import importlib
import os

from detectron2.data import DatasetCatalog

from rfpn.data.files import datasets_root
from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.pathfinder.registration import register_builtin_pathfinder
from rfpn.data.scenes.dataset import CATEGORIES as SCENES_CATEGORIES

# Stated here and not read from the JSONs, since the folders may come after the import.
DSB2018_CATEGORIES = [
    {"id": 1, "name": "nucleus", "isthing": 1},
    {"id": 2, "name": "background", "isthing": 0},
]


def register_builtin(root: str) -> None:
    """Registers every set of this module that lies, or will lie, under ``root``."""
    for prefix, folder, categories, derive in (
        ("scenes_panoptic", "scenes", SCENES_CATEGORIES, False),  # the generator writes every file
        ("dsb2018_panoptic", "dsb2018_panoptic", DSB2018_CATEGORIES, True),
    ):
        for split in ("train", "val"):
            name = f"{prefix}_{split}"
            if name not in DatasetCatalog:
                path = os.path.join(root, folder)
                register_panoptic_folder(name, path, split, categories, derive_missing=derive)
    register_builtin_pathfinder(root)


register_builtin(datasets_root())
for module in filter(None, os.getenv("RFPN_IMPORT", "").replace(" ", "").split(",")):
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"RFPN_IMPORT names {module}: {error}; is its folder in PYTHONPATH?") from None
