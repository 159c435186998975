"""Registers COCO panoptic sets (JSON + PNG folder) in the "separated" form that Panoptic FPN trains on.

In that form each record holds instances (``annotations``) and the path of a label map (``sem_seg_file_name``), each
with contiguous ids of their own: classes 0..n_things - 1, and semantic ids 0 things, 1..n_stuff, 255 void. So
``MODEL.ROI_HEADS.NUM_CLASSES == n_things`` and ``MODEL.SEM_SEG_HEAD.NUM_CLASSES == n_stuff + 1``.
"""

import errno
import hashlib
import logging
import os

from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets.coco import load_coco_json

from rfpn.data.annotations import (
    IGNORE_LABEL,
    Categories,
    misfit,
    read_instances_json,
    read_panoptic_json,
    split_categories,
)
from rfpn.data.catalog import register_once
from rfpn.data.check import PREPARE_COMMAND, check_files, check_up_to_date
from rfpn.data.files import locked, read_json
from rfpn.data.records import check_pictures
from rfpn.data.semantic import Split, prepare_split, split_of_folder, unannotated
from rfpn.data.stamps import made_from

logger = logging.getLogger(__name__)

# ends of the metadata's names that number the classes, of things and of stuff
_NUMBERING = ("classes", "dataset_id_to_contiguous_id")
_DEFAULT_COLORS = ((220, 20, 60), (70, 130, 180), (107, 142, 35), (190, 153, 153), (250, 170, 30), (0, 80, 100))


def panoptic_metadata(categories: list, source: str) -> dict:
    """Detectron2 metadata of COCO panoptic ``categories``, for training, evaluation and drawing.

    Raises:
        ValueError: a field is missing, or ids repeat; the message starts with ``source``.
    """
    split = split_categories(categories, source)
    colors = {
        c["id"]: list(c.get("color", _DEFAULT_COLORS[i % len(_DEFAULT_COLORS)]))
        for i, c in enumerate(split.things + split.stuff)
    }
    return {
        "thing_classes": [c["name"] for c in split.things],
        "thing_colors": [colors[c["id"]] for c in split.things],
        "thing_dataset_id_to_contiguous_id": split.thing_ids(),
        "stuff_classes": ["things"] + [c["name"] for c in split.stuff],
        "stuff_colors": [[82, 18, 128]] + [colors[c["id"]] for c in split.stuff],
        # Dataset id 0 is no category: it stands for "things", as in Detectron2's own COCO metadata.
        "stuff_dataset_id_to_contiguous_id": {0: 0, **split.stuff_ids()},
        "ignore_label": IGNORE_LABEL,
        "evaluator_type": "coco_panoptic_seg",
    }


def register_panoptic(
    name: str,
    *,
    image_root: str,
    panoptic_root: str,
    panoptic_json: str,
    sem_seg_root: str | None = None,
    instances_json: str | None = None,
    derived_dir: str | None = None,
    categories: list | None = None,
) -> None:
    """Registers one split of a COCO panoptic set. Things-only and stuff-only sets are fine, as are ids in any order.

    Args:
        image_root: folder of the ``file_name`` of the JSON's ``images`` (any extension).
        panoptic_root: folder of panoptic PNGs.
        panoptic_json: COCO panoptic JSON.
        sem_seg_root, instances_json: label maps ``panoptic_stuff_*`` and COCO instances. Give both, or neither:
            then they are made from the panoptic annotation at first use, below ``derived_dir``.
        derived_dir: a writable folder, which gets one for ``name`` and this JSON; default: ``$RFPN_DERIVED_DIR``, or
            else ``~/.cache/rfpn``.
        categories: the JSON's ``categories``, for a set whose JSON is not there yet; default: read them from it.

    Raises:
        FileNotFoundError: ``categories`` is not given and there is no ``panoptic_json``.
        ValueError: ``name`` is taken by a set with other arguments, or the categories are wrong.
    """
    if (sem_seg_root is None) != (instances_json is None):
        raise ValueError(f"dataset '{name}': give both sem_seg_root and instances_json, or neither")
    derive = sem_seg_root is None
    if derive:
        derived_dir = os.path.join(os.path.expanduser(derived_dir or default_derived_dir()), _folder_of(name, panoptic_json))
        sem_seg_root = os.path.join(derived_dir, "panoptic_stuff")
        instances_json = os.path.join(derived_dir, "instances.json")
    split = Split(image_root, panoptic_root, panoptic_json, sem_seg_root, instances_json)
    if categories is None:
        if not os.path.isfile(panoptic_json):
            raise FileNotFoundError(f"dataset '{name}': {os.path.abspath(panoptic_json)} does not exist")
        categories = read_json(panoptic_json).get("categories")
    metadata = panoptic_metadata(categories, panoptic_json)
    paths = {
        "image_root": split.image_root,
        "panoptic_root": split.panoptic_root,
        "panoptic_json": split.panoptic_json,
        "sem_seg_root": split.sem_seg_root,
        "json_file": split.instances_json,
        "made_on_use": derive,
    }
    arguments = (split, metadata, derive)
    register_once(name, arguments, lambda: load_panoptic(name, split, derive=derive), paths | metadata)


def register_panoptic_folder(
    name: str,
    root: str,
    split: str,
    categories: list | None = None,
    *,
    derive_missing: bool = True,
    derived_dir: str | None = None,
) -> None:
    """Registers ``split`` of a folder in COCO's layout (see ``datasets/README.md``) with :func:`register_panoptic`.

    Args:
        derive_missing: where ``root`` has no label maps or no instances JSON, make both at first use; else their
            absence is an error at loading.
        derived_dir: where both lie, or are made, in place of ``root``: ``--derived-dir`` of prepare_coco_panoptic.py.
    """
    paths = split_of_folder(root, split, derived_dir and os.path.expanduser(derived_dir))
    prepared = os.path.isdir(paths.sem_seg_root) and os.path.isfile(paths.instances_json)
    if name in DatasetCatalog and MetadataCatalog.get(name).get("made_on_use"):
        prepared = False  # since then; the same registration again is no other
    given = paths._asdict()
    if derive_missing and not prepared:
        given.update(sem_seg_root=None, instances_json=None)
    register_panoptic(name, categories=categories, derived_dir=derived_dir, **given)


def default_derived_dir() -> str:
    """Folder for label maps and instances of sets whose own folder lacks them: ``$RFPN_DERIVED_DIR`` or a cache."""
    return os.environ.get("RFPN_DERIVED_DIR") or os.path.join(os.path.expanduser("~"), ".cache", "rfpn")


def _folder_of(name: str, panoptic_json: str) -> str:
    # two projects may well have sets of one name, and train at once
    return f"{name}-{hashlib.sha256(os.path.abspath(panoptic_json).encode()).hexdigest()[:8]}"


def load_panoptic(name: str, split: Split, *, derive: bool) -> list:
    """Detectron2 dataset dicts of one registered split.

    Each has ``file_name``, ``image_id``, ``height``, ``width``, ``annotations`` (with masks), ``sem_seg_file_name``,
    ``pan_seg_file_name`` and ``segments_info`` (contiguous category ids and ``isthing``).

    Raises:
        FileNotFoundError: a folder, or pictures listed in ``images``, are missing; names them.
        ValueError: the JSONs are wrong or don't fit each other, or the label maps are of a former one.
    """
    check_files(name)
    content = read_panoptic_json(split.panoptic_json)
    categories = split_categories(content["categories"], split.panoptic_json)
    _check_categories(name, categories, split)
    if not content["annotations"]:
        raise ValueError(f"{split.panoptic_json}: no annotated images")
    if left_out := unannotated(content):
        words = f"{len(left_out)} images have no annotation and are left out, one of them {left_out[0]}"
        logger.warning(f"{split.panoptic_json}: {words}")
    if split_stuff := _split_stuff(content, categories):
        words = f"{len(split_stuff)} images have several segments of one kind of stuff, one of them {split_stuff[0]}"
        logger.warning(f"{split.panoptic_json}: {words}; models give one, so that PQ stays below 100: join them")
    if derive:
        _derive(split)
    else:
        check_up_to_date(name)
    instances = _load_instances(name, split, categories, content)
    images = {image["id"]: image for image in content["images"]}
    records = [
        _record(images[a["image_id"]], a, instances.get(a["image_id"], []), split, categories)
        for a in sorted(content["annotations"], key=lambda a: a["image_id"])
    ]
    check_pictures(records)
    return records


def _split_stuff(content: dict, categories: Categories) -> list:
    """Ids of images in which a kind of stuff is more than one segment."""
    stuff, found = categories.stuff_ids(), []
    for annotation in content["annotations"]:
        # crowds are left out of PQ
        segments = [segment for segment in annotation["segments_info"] if not segment["iscrowd"]]
        kinds = [segment["category_id"] for segment in segments if segment["category_id"] in stuff]
        if len(kinds) > len(set(kinds)):
            found.append(annotation["image_id"])
    return found


def _record(image: dict, annotation: dict, instances: list, split: Split, categories: Categories) -> dict:
    thing_ids, stuff_ids = categories.thing_ids(), categories.stuff_ids()
    segments = []
    for segment in annotation["segments_info"]:
        category, isthing = segment["category_id"], segment["category_id"] in thing_ids
        contiguous = thing_ids[category] if isthing else stuff_ids[category]
        segments.append({**segment, "category_id": contiguous, "isthing": isthing})
    label_map = os.path.splitext(annotation["file_name"])[0] + ".png"
    return {
        "file_name": os.path.join(split.image_root, image["file_name"]),
        "image_id": image["id"],
        "height": image["height"],
        "width": image["width"],
        "annotations": instances,
        "sem_seg_file_name": os.path.join(split.sem_seg_root, label_map),
        "pan_seg_file_name": os.path.join(split.panoptic_root, annotation["file_name"]),
        "segments_info": segments,
    }


def _load_instances(name: str, split: Split, categories: Categories, panoptic: dict) -> dict:
    """Image id -> its instances in Detectron2's form; a warning where the JSON lacks images that are annotated."""
    content = read_instances_json(split.instances_json)
    if wrong := misfit(content, panoptic, categories.things, split.panoptic_json):
        raise ValueError(f"{split.instances_json}: {wrong}; is it another set's, or another split's?")
    left_out = {a["image_id"] for a in panoptic["annotations"]} - {image["id"] for image in content["images"]}
    if left_out:
        logger.warning(
            f"{split.instances_json}: {len(left_out)} annotated images of {split.panoptic_json} are not among its images, "
            f"one of them {min(left_out, key=str)}; they count as without instances. If it is out of date, remove it and run "
            f"{PREPARE_COMMAND}"
        )
    if not categories.things:  # Detectron2's loader can't read a JSON without categories
        return {}
    return {
        record["image_id"]: record["annotations"]
        for record in load_coco_json(split.instances_json, split.image_root, name)
    }


def _check_categories(name: str, categories: Categories, split: Split) -> None:
    metadata = MetadataCatalog.get(name)
    listed = panoptic_metadata([*categories.things, *categories.stuff], split.panoptic_json)
    # names too: equal ids that stand for other classes would be trained on and scored as these
    if any(metadata.get(f"{kind}_{key}") != listed[f"{kind}_{key}"] for kind in ("thing", "stuff") for key in _NUMBERING):
        raise ValueError(f"{split.panoptic_json}: its categories are not those that '{name}' was registered with")


def _derive(split: Split) -> None:
    """Makes label maps and instances JSON once; they are made anew when the panoptic JSON has changed."""
    derived_dir = os.path.dirname(split.instances_json)

    def made() -> bool:
        return os.path.isfile(split.instances_json) and bool(made_from(split.sem_seg_root, split.panoptic_json))

    # asked before the lock is taken, which a read-only folder does not allow
    if made():
        return
    try:
        os.makedirs(derived_dir, exist_ok=True)
        if not os.access(derived_dir, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        words = f"{error.strerror}; set RFPN_DERIVED_DIR to a folder that can be written to"
        raise OSError(error.errno, words, derived_dir) from None
    with locked(split.instances_json):  # processes of one run come here together
        if made():
            return
        logger.info(f"Making label maps and instances of {split.panoptic_json} in {derived_dir} ...")
        problems, _ = prepare_split(split, check_images=False)
        if problems:
            raise ValueError(f"{len(problems)} bad files, the first: {problems[0]}. List all with {PREPARE_COMMAND}")
