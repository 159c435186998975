"""Registration of data sets under names that are taken once."""

from typing import Callable

from detectron2.data import DatasetCatalog, MetadataCatalog

_registered = {}  # name -> the arguments it was registered with


def register_once(name: str, arguments: tuple, load: Callable[[], list[dict]], metadata: dict) -> None:
    """Register ``load`` and ``metadata`` with Detectron2; nothing where it was done with the same arguments.

    Raises:
        ValueError: ``name`` is taken by a set with other arguments.
    """
    if name in DatasetCatalog:
        if _registered.get(name) != arguments:
            raise ValueError(f"dataset '{name}' is already registered with other arguments; choose another name")
        return
    if name in MetadataCatalog:
        MetadataCatalog.remove(name)  # left by a set that was removed, or by a mere look-up
    DatasetCatalog.register(name, load)
    MetadataCatalog.get(name).set(**metadata)
    _registered[name] = arguments
