"""What Detectron2 v0.6 needs to run without its compiled extension on today's libraries.

Read by ``install_detectron2.py``. Each entry says which text of which file (relative to the
sources' root) is replaced, how often that text must occur, and why.
"""

from typing import NamedTuple


class Adaptation(NamedTuple):
    """One exact replacement of text in one source file."""

    file: str
    old: str
    new: str
    reason: str
    count: int = 1


_IMPORT_C = "from detectron2 import _C\n"
_GUARDED_IMPORT_C = """try:
    from detectron2 import _C
except ImportError:
    from detectron2.utils.env import missing_extension as _C
"""
_NO_EXTENSION = "the C++ sources are not part of the distribution, so detectron2._C can't be built"
_NUMPY_ALIAS = "numpy 1.24 removed the aliases of Python's own types"
_MESHGRID = "torch warns at every start that meshgrid will require its indexing argument"

ADAPTATIONS = (
    Adaptation(
        "detectron2/utils/env.py",
        '__all__ = ["seed_all_rng"]\n',
        '''__all__ = ["seed_all_rng"]


class _MissingExtension:
    """Stands in for detectron2._C where it was not compiled."""

    def __getattr__(self, name):
        raise ImportError(
            f"detectron2._C.{name} is a compiled operator, which this pure-Python build of "
            "Detectron2 lacks: build Detectron2 from its upstream sources to use it"
        )


missing_extension = _MissingExtension()
''',
        "an operator of the missing extension says so when it is called, not at import",
    ),
    Adaptation("detectron2/layers/deform_conv.py", _IMPORT_C, _GUARDED_IMPORT_C, _NO_EXTENSION),
    Adaptation(
        "detectron2/layers/roi_align_rotated.py", _IMPORT_C, _GUARDED_IMPORT_C, _NO_EXTENSION
    ),
    Adaptation("detectron2/layers/rotated_boxes.py", _IMPORT_C, _GUARDED_IMPORT_C, _NO_EXTENSION),
    Adaptation(
        "detectron2/evaluation/coco_evaluation.py",
        "from detectron2.evaluation.fast_eval_api import COCOeval_opt\n",
        "",
        "fast_eval_api needs detectron2._C at import; the guarded import follows the others",
    ),
    Adaptation(
        "detectron2/evaluation/coco_evaluation.py",
        "from .evaluator import DatasetEvaluator\n",
        """from .evaluator import DatasetEvaluator

try:
    from detectron2.evaluation.fast_eval_api import COCOeval_opt
except ImportError:
    COCOeval_opt = COCOeval
""",
        "without the extension, pycocotools' own COCOeval is used, as upstream main does",
    ),
    Adaptation(
        "detectron2/evaluation/coco_evaluation.py",
        "        self._use_fast_impl = use_fast_impl\n",
        "        self._use_fast_impl = use_fast_impl and COCOeval_opt is not COCOeval\n",
        "the log must name the implementation that really runs",
    ),
    Adaptation("detectron2/data/build.py", "dtype=np.int\n", "dtype=int\n", _NUMPY_ALIAS),
    Adaptation("detectron2/data/build.py", "dtype=np.int)", "dtype=int)", _NUMPY_ALIAS),
    Adaptation(
        "detectron2/data/datasets/pascal_voc.py", "dtype=np.str)", "dtype=str)", _NUMPY_ALIAS
    ),
    Adaptation(
        "detectron2/evaluation/pascal_voc_evaluation.py",
        "astype(np.bool)",
        "astype(bool)",
        _NUMPY_ALIAS,
        count=2,
    ),
    Adaptation(
        "detectron2/evaluation/sem_seg_evaluation.py",
        "dtype=np.int)",
        "dtype=int)",
        _NUMPY_ALIAS,
        count=2,
    ),
    Adaptation(
        "detectron2/evaluation/sem_seg_evaluation.py",
        "np.float)",
        "float)",
        _NUMPY_ALIAS,
        count=5,
    ),
    Adaptation(
        "detectron2/structures/masks.py", "np.bool)", "bool)", _NUMPY_ALIAS, count=3
    ),
    Adaptation(
        "detectron2/utils/visualizer.py", "np.bool)", "bool)", _NUMPY_ALIAS, count=3
    ),
    Adaptation("detectron2/utils/video_visualizer.py", "np.bool)", "bool)", _NUMPY_ALIAS),
    Adaptation(
        "detectron2/layers/mask_ops.py",
        "np.array(mask, copy=False)",
        "np.asarray(mask)",
        "numpy 2 raises where copy=False can't be honoured",
    ),
    Adaptation(
        "detectron2/data/transforms/transform.py",
        "interp=Image.LINEAR",
        "interp=Image.BILINEAR",
        "Pillow 10 removed the alias LINEAR",
    ),
    Adaptation(
        "detectron2/model_zoo/model_zoo.py",
        "import pkg_resources\n",
        "",
        "setuptools 81 removed pkg_resources",
    ),
    Adaptation(
        "detectron2/model_zoo/model_zoo.py",
        """    cfg_file = pkg_resources.resource_filename(
        "detectron2.model_zoo", os.path.join("configs", config_path)
    )
""",
        '    cfg_file = os.path.join(os.path.dirname(__file__), "configs", config_path)\n',
        "setuptools 81 removed pkg_resources",
    ),
    Adaptation(
        "detectron2/modeling/anchor_generator.py",
        "torch.meshgrid(shifts_y, shifts_x)",
        'torch.meshgrid(shifts_y, shifts_x, indexing="ij")',
        _MESHGRID,
    ),
    Adaptation(
        "projects/Panoptic-DeepLab/panoptic_deeplab/post_processing.py",
        "        torch.arange(width, dtype=offsets.dtype, device=offsets.device),\n",
        "        torch.arange(width, dtype=offsets.dtype, device=offsets.device),\n"
        '        indexing="ij",\n',
        _MESHGRID,
    ),
    Adaptation(
        "detectron2/export/__init__.py",
        "from .api import *\n",
        """try:
    from .api import *
except ImportError:
    pass
""",
        "the caffe2 exporters import caffe2, which torch no longer ships; tracing does without",
    ),
    Adaptation(
        "detectron2/config/lazy.py",
        "        import black\n",
        "",
        "black only formats a printed config and is no requirement here",
    ),
    Adaptation(
        "detectron2/config/lazy.py",
        """        try:
            return black.format_str(py_str, mode=black.Mode())
        except black.InvalidInput:
            return py_str
""",
        """        try:
            import black
        except ImportError:
            return py_str
        try:
            return black.format_str(py_str, mode=black.Mode())
        except black.InvalidInput:
            return py_str
""",
        "black only formats a printed config and is no requirement here",
    ),
)
