"""Configuration keys of this project, and the one get_cfg that every program uses."""

import yaml
from detectron2.config import CfgNode as CN


def get_cfg() -> CN:
    """Detectron2's defaults plus this project's keys, with its models and data sets registered."""
    from detectron2.config import get_cfg as detectron2_cfg

    cfg = detectron2_cfg()
    add_rfpn_config(cfg)
    return cfg


def add_rfpn_config(cfg: CN) -> None:
    """Add this project's keys to a Detectron2 config, each commented below, and register its models and data sets."""
    import rfpn.data.builtin  # noqa: F401  registers data sets
    import rfpn.modeling  # noqa: F401  registers models

    _add_recurrent(cfg)
    _add_pathfinder(cfg)
    _add_training(cfg)


def settings_of(cfg: CN) -> dict[str, object]:
    """Values of a configuration by dotted key, as its file would hold them."""
    return flatten(yaml.safe_load(cfg.dump()))


def read_settings(path: str) -> dict[str, object]:
    """Values of a configuration file by dotted key. Raises ValueError naming a file that is none."""
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a configuration ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a configuration")
    return flatten(content)


def flatten(node: dict, prefix: str = "") -> dict[str, object]:
    """Leaves of nested mappings by dotted key."""
    leaves = {}
    for key, value in node.items():
        leaves |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return leaves


def _add_recurrent(cfg: CN) -> None:
    # Recurrent processing, shared by the mask head (HGRUMaskHead) and the Pathfinder models.
    cfg.MODEL.RECURRENT = CN()
    node = cfg.MODEL.RECURRENT
    # "hgru" or "conv_lstm" (Pathfinder); the mask head always uses the hGRU with a GALA gate.
    node.CELL = "hgru"
    # T, steps of processing in training; at least 1.
    node.STEPS = 20
    # In training, up to this many more steps, drawn anew for each batch: the state must then be right after any of them
    # (docs/results/pathfinder.md). Needs SOLVER "steps".
    node.EXTRA_STEPS = 0
    # Steps in evaluation; 0 takes STEPS.
    node.TEST_STEPS = 0
    # Evaluation stops a sample once its relative residual is at most this; 0 runs all steps.
    node.TEST_TOLERANCE = 0.0
    # "bptt", "tbptt" or "rbp". C-RBP is "rbp" with LIPSCHITZ.WEIGHT > 0, C-BPTT is "bptt" with it.
    node.GRADIENT = "rbp"
    # Forward solver: "steps" (T plain steps) or "anderson" (deep-equilibrium baseline; needs GRADIENT "rbp").
    node.SOLVER = "steps"
    # Relative residual at which "anderson" stops, after STEPS evaluations at most.
    node.SOLVER_TOLERANCE = 1e-4
    # Backward system of "rbp": "neumann" (sums terms) or "solve" (GMRES with the same number of products).
    node.ADJOINT = "neumann"
    # Number of last steps that get a gradient under "tbptt".
    node.WINDOW = 3
    # K, terms of the Neumann series after the first, under "rbp".
    node.NEUMANN_TERMS = 15
    # End a sample's series once a term's norm is at most this share of the cotangent's; 0 sums all terms.
    node.NEUMANN_TOLERANCE = 0.0
    # A term larger than this many times the cotangent ends the series (and counts as truncated).
    node.GROWTH_LIMIT = 2.0
    # E, odd size of the recurrent kernels in pixels of the state; 0 takes 3 (mask head) or 15 (Pathfinder).
    node.KERNEL_SIZE = 0
    # "released" (the paper's code) or "printed" (the paper's equations) form of the Pathfinder hGRU.
    node.FORM = "released"
    # Start of gate biases: "released" U(1, T-1) or "chronos" log U(1, T-1).
    node.GATE_BIAS = "released"
    # The T of the gates' start values; 0 takes STEPS (mask head) or 8 (Pathfinder, as released).
    node.GATE_STEPS = 0
    # Groups of the mask head cell's group norms; must divide the channels of the pooled features.
    node.NORM_GROUPS = 32
    # Start of the weights of the hGRU's norms.
    node.NORM_START = 0.1
    # "auto" lets cells run in their fast forms where these can; "off" keeps to the plain ones.
    node.FAST = "auto"
    # Lipschitz Coefficient Penalty on the last step's Jacobian.
    node.LIPSCHITZ = CN()
    # Weight of the penalty in the loss; 0 leaves it out. The configurations of C-RBP set it.
    node.LIPSCHITZ.WEIGHT = 0.0
    # λ in [0, 1); column sums of the Jacobian above it are penalised.
    node.LIPSCHITZ.COEFFICIENT = 0.9
    # "mean_square", "sum_square" (grows with the number of RoIs) or "norm".
    node.LIPSCHITZ.REDUCTION = "mean_square"
    # "ones", "sample_signs" (a random sign for each sample) or "rademacher" (one for each element); signs are drawn anew at
    # every step of training. With norms over the batch, "ones" sees little (docs/mathematics.md). "secant": instead of column
    # sums, the length of each sample's last motion over that of the one before; sees whatever keeps moving.
    node.LIPSCHITZ.PROBE = "ones"
    # Penalise column sums below −λ too. Without it an eigenvalue of the Jacobian may pass −1 unseen, and the states
    # end in a cycle of two instead of a fixed point.
    node.LIPSCHITZ.TWO_SIDED = False


def _add_pathfinder(cfg: CN) -> None:
    # Meta-architecture "PathfinderNet": filters, recurrent or feedforward layer, readout.
    cfg.MODEL.PATHFINDER = CN()
    node = cfg.MODEL.PATHFINDER
    # "recurrent" or "feedforward" (the control whose layers do not share weights).
    node.LAYER = "recurrent"
    # C, number of input filters and of channels of the recurrent layer; 1 to 25.
    node.CHANNELS = 25
    # Layers of the feedforward control.
    node.FEEDFORWARD_LAYERS = 6
    # "focal" (the released code) or "cross_entropy" (the paper).
    node.LOSS = "focal"
    # γ of the focal loss; 0 (cross entropy) or at least 1.
    node.FOCAL_GAMMA = 2.0
    # Supervise the readout of every step instead of the last one (needs GRADIENT "bptt").
    node.SUPERVISE_ALL_STEPS = False
    # Input side in pixels.
    cfg.INPUT.PATHFINDER_SIZE = 150
    # Target pixels are those above this value (of 1) after resizing.
    cfg.INPUT.PATHFINDER_THRESHOLD = 0.2


def _add_training(cfg: CN) -> None:
    # "SGD" (Detectron2's), "Adam" or "AdamW".
    cfg.SOLVER.OPTIMIZER = "SGD"
    # Pairs of a module's name and a number that BASE_LR is multiplied by for its parameters, such as
    # (("roi_heads.mask_head", 10.0),); of two pairs that match a parameter the later one counts.
    cfg.SOLVER.LR_FACTORS = ()
    # Steps whose losses or gradients are not finite: how many to skip (counted and logged) before the run stops.
    cfg.SOLVER.SKIP_NONFINITE = 0
    # Names of modules, such as "roi_heads.mask_head"; with any, nothing else is trained, and other norms keep their statistics.
    cfg.SOLVER.TRAIN_ONLY = ()
    # Batches whose gradients are averaged before one optimizer step.
    cfg.SOLVER.ACCUMULATE = 1
    # Precision of autocast under SOLVER.AMP.ENABLED: "bfloat16" or "float16" (with loss scaling).
    cfg.SOLVER.AMP.DTYPE = "bfloat16"
    # Let evaluation start even if the weights file lacks parameters of the model, or has more for its parts.
    cfg.MODEL.ALLOW_MISSING_WEIGHTS = False
    # Images of each test set whose predictions every evaluation shows in TensorBoard; 0 for none.
    cfg.TEST.LOG_IMAGES = 0
    # Processes of the panoptic quality computation; at most the number of CPUs and of images.
    cfg.TEST.PQ_WORKERS = 2
