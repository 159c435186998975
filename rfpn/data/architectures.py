"""What models give and need, by their meta-architecture: Detectron2's own, and those derived from them."""

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.modeling import META_ARCH_REGISTRY

from rfpn.data.files import first_few

# outputs of Detectron2's architectures; one that is derived from none of them is taken to give all
_OUTPUTS = {
    "FCOS": {"instances"},
    "GeneralizedRCNN": {"instances", "masks"},
    "PanopticFPN": {"sem_seg", "instances", "masks", "panoptic_seg"},
    # boxes without classes, whose recall is scored in the place of AP
    "ProposalNetwork": {"instances"},
    "RetinaNet": {"instances"},
    "SemanticSegmentor": {"sem_seg"},
}
# metadata that name a set's classes -> architecture -> node of MODEL whose NUM_CLASSES counts them
_COUNTED = {
    "thing_classes": {"GeneralizedRCNN": "ROI_HEADS", "RetinaNet": "RETINANET"},
    "stuff_classes": {"PanopticFPN": "SEM_SEG_HEAD", "SemanticSegmentor": "SEM_SEG_HEAD"},
}
# evaluator_type of a set -> outputs that are scored on it
_SCORED = {
    "coco": {"instances", "masks"},
    "coco_panoptic_seg": {"sem_seg", "instances", "masks", "panoptic_seg"},
    "sem_seg": {"sem_seg"},
    "pathfinder": {"sem_seg"},
}


def descends(architecture: str, *ancestors: str) -> bool:
    """Whether a ``MODEL.META_ARCHITECTURE`` is one of those named, or derived from one."""
    return not set(ancestors).isdisjoint(_lineage(architecture))


def is_pathfinder(cfg: CfgNode) -> bool:
    """Whether the model of a configuration is a Pathfinder model. Raises KeyError for a class that is not registered."""
    META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)
    return descends(cfg.MODEL.META_ARCHITECTURE, "PathfinderNet")


def given_outputs(architecture: str) -> set:
    """Those of "sem_seg", "instances", their "masks" and "panoptic_seg" that models of a ``MODEL.META_ARCHITECTURE`` give."""
    return next((_OUTPUTS[name] for name in _lineage(architecture) if name in _OUTPUTS), _OUTPUTS["PanopticFPN"])


def scored_outputs(dataset_name: str, architecture: str) -> set:
    """Those of :func:`given_outputs` that evaluation scores on a set.

    Args:
        architecture: ``MODEL.META_ARCHITECTURE``.

    Raises:
        ValueError: naming the set on which none can be scored.
    """
    metadata = MetadataCatalog.get(dataset_name)
    kind = metadata.get("evaluator_type")
    outputs = _SCORED.get(kind, set())
    # a set of stuff alone has no instances to score
    if metadata.get("thing_classes") == []:
        outputs = outputs - {"instances", "masks"}
    outputs = outputs & given_outputs(architecture)
    if not outputs:
        known = f"set its metadata evaluator_type to one of {', '.join(_SCORED)}, or override Trainer.build_evaluator"
        raise ValueError(
            f"data set {dataset_name}: no evaluator for evaluator_type {kind!r} with MODEL.META_ARCHITECTURE {architecture!r}"
            + ("" if kind in _SCORED else f"; {known}")
        )
    return outputs


def check_class_counts(dataset_name: str, cfg: CfgNode) -> None:
    """The model has as many classes as a set names, of those that its architecture predicts.

    Detectron2's evaluators stop at a class that the set lacks, or drop the pixels that were taken for it. A set without things
    goes with any number of them.

    Raises:
        ValueError: naming the metadata that the set lacks, or the key whose number of classes is another.
    """
    metadata = MetadataCatalog.get(dataset_name)
    for field in _COUNTED:
        node, names = _counting_node(cfg.MODEL.META_ARCHITECTURE, field), metadata.get(field)
        if node and names is None:
            raise ValueError(f"dataset '{dataset_name}' lacks the metadata {field}; register it with register_panoptic")
        if node and names and cfg.MODEL[node].NUM_CLASSES != len(names):
            raise ValueError(
                f"MODEL.{node}.NUM_CLASSES is {cfg.MODEL[node].NUM_CLASSES}, but '{dataset_name}' needs {len(names)}, "
                f"one for each of its {field}: {first_few(names, 3)}"
            )


def check_ignore_value(dataset_name: str, cfg: CfgNode) -> None:
    """A model that is trained on label maps takes the value for void that a set's maps have.

    Raises:
        ValueError: naming the key whose value is another.
    """
    label = MetadataCatalog.get(dataset_name).get("ignore_label")
    value = cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE
    if _counting_node(cfg.MODEL.META_ARCHITECTURE, "stuff_classes") and label not in (None, value):
        raise ValueError(
            f"MODEL.SEM_SEG_HEAD.IGNORE_VALUE is {value}, but void is {label} in the label maps of '{dataset_name}'"
        )


def predicted_things(cfg: CfgNode) -> tuple[int, str]:
    """How many classes of things a model tells apart, 0 where it tells none; and the key that says so."""
    architecture = cfg.MODEL.META_ARCHITECTURE
    if "instances" not in given_outputs(architecture) or descends(architecture, "ProposalNetwork"):
        return 0, ""
    node = _counting_node(architecture, "thing_classes") or "ROI_HEADS"
    return cfg.MODEL[node].NUM_CLASSES, f"MODEL.{node}.NUM_CLASSES"


def _counting_node(architecture: str, field: str) -> str | None:
    """The node of _COUNTED for an architecture, or the nearest that it is derived from."""
    nodes = _COUNTED[field]
    return next((nodes[name] for name in _lineage(architecture) if name in nodes), None)


def _lineage(architecture: str) -> list[str]:
    """Names of an architecture and of the classes that it is derived from, nearest first."""
    if architecture not in META_ARCH_REGISTRY:
        return [architecture]
    # a function that makes models may be registered too
    bases = getattr(META_ARCH_REGISTRY.get(architecture), "__mro__", ())
    return [architecture, *(base.__name__ for base in bases)]
