"""The trainer refuses checkpoints of other runs on resuming, in one line."""

import logging
import shutil
from contextlib import nullcontext

import pytest
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.evaluation import DatasetEvaluator

from rfpn.data.build import evaluation_batch
from rfpn.engine.setup import load_cfg
from rfpn.engine.resume import has_shapes
from rfpn.engine.trainer import Trainer
from tests.analysis.tiny_runs import SCENES

pytestmark = pytest.mark.usefixtures("scenes")


def build(folder, *overrides) -> Trainer:
    sets = ["DATASETS.TRAIN", ("tiny_scenes",), "DATASETS.TEST", ()]
    return Trainer(load_cfg(str(SCENES), ["MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(folder), *sets, *overrides]))


@pytest.fixture(scope="module")
def folder(scenes, tmp_path_factory):
    """A finished run of two steps."""
    folder = tmp_path_factory.mktemp("run")
    build(folder).train()
    return folder


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["SOLVER.OPTIMIZER", "SGD"], "its optimizer is another"),
        (["MODEL.BACKBONE.FREEZE_AT", 2], "its optimizer is another"),
        # their optimizers are others too
        (["MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead"], "it is of another model: .*mask_fcn1"),
        (["MODEL.ROI_BOX_HEAD.NUM_FC", 1], "it is of another model: missing 0; unexpected 2 .*fc2"),
        (["MODEL.ROI_MASK_HEAD.CONV_DIM", 16], r"it is of another model: .*wrong shape 3 \(roi_heads.mask_head.deconv.weight"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_not_resumed(folder, overrides, words):
    trainer = build(folder, *overrides)
    with pytest.raises(ValueError, match=f"the last checkpoint in {folder} cannot be resumed, {words}.*without --resume"):
        trainer.resume_or_load()


def test_a_checkpoint_of_which_nothing_fits_is_no_start_either(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    last = copy / (copy / "last_checkpoint").read_text()
    saved = torch.load(last, weights_only=True)
    saved["model"] = {f"other.{name}": value for name, value in saved["model"].items()}
    torch.save(saved, last)
    with pytest.raises(ValueError, match="it is of another model: .*take another OUTPUT_DIR$"):
        build(copy).resume_or_load()


def test_a_batch_that_does_not_scale_is_named(tmp_path):
    with pytest.raises(ValueError, match="IMS_PER_BATCH 4 is no multiple of the 10 processes of .*WORLD_SIZE; set .* 0"):
        build(tmp_path, "SOLVER.IMS_PER_BATCH", 4, "SOLVER.REFERENCE_WORLD_SIZE", 10)


def test_a_period_that_scales_to_nothing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 4)
    with pytest.raises(ValueError, match="SOLVER.CHECKPOINT_PERIOD must be at least 1, got 0"):
        build(tmp_path, "SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.REFERENCE_WORLD_SIZE", 1, "SOLVER.MAX_ITER", 40)


def test_a_run_in_the_folder_of_another_says_so_and_is_the_one_that_is_resumed(folder, tmp_path, caplog):
    """Also where it is killed before its first checkpoint."""
    used = shutil.copytree(folder, tmp_path / "used")
    with pytest.raises(FileNotFoundError, match="nowhere.pth"):
        build(used, "MODEL.WEIGHTS", "nowhere.pth").resume_or_load(resume=False)
    assert (used / "last_checkpoint").is_file()
    for place, said in ((used, True), (tmp_path, False)):
        with caplog.at_level(logging.WARNING, logger="rfpn"):
            build(place).resume_or_load(resume=False)
        assert (f"OUTPUT_DIR {place} holds a run" in caplog.text) == said
    assert (used / "model_final.pth").is_file() and not (used / "last_checkpoint").exists()
    weights, old = (torch.load(used / "model_final.pth", weights_only=True)["model"] for _ in range(2))
    name = "roi_heads.mask_head.predictor.bias"
    weights[name] = old[name] + 1
    torch.save({"model": weights}, used / "given.pth")
    resumed = build(used, "MODEL.WEIGHTS", str(used / "given.pth"))
    resumed.resume_or_load(resume=True)
    assert resumed.start_iter == 0 and torch.equal(resumed.model.state_dict()[name], weights[name])


def test_moments_of_other_parameters_are_refused_however_alike(tmp_path):
    first, second = "backbone.fpn_output2", "backbone.fpn_output3"
    build(tmp_path, "SOLVER.TRAIN_ONLY", (first,), "SOLVER.MAX_ITER", 1).train()
    with pytest.raises(ValueError, match="cannot be resumed, its optimizer is another"):
        build(tmp_path, "SOLVER.TRAIN_ONLY", (second,), "SOLVER.MAX_ITER", 2).resume_or_load()


@pytest.mark.parametrize("optimizer, other", [("Adam", "AdamW"), ("AdamW", "Adam")])
def test_a_run_of_an_older_torch_is_resumed_with_the_same_optimizer(tmp_path, optimizer, other):
    """Groups of Adam have had settings added to them since torch 2.6."""
    build(tmp_path, "SOLVER.OPTIMIZER", optimizer, "SOLVER.MAX_ITER", 1).train()
    with pytest.raises(ValueError, match="cannot be resumed, its optimizer is another"):
        build(tmp_path, "SOLVER.OPTIMIZER", other, "SOLVER.MAX_ITER", 2).resume_or_load()
    path = tmp_path / "model_final.pth"
    checkpoint = torch.load(path, weights_only=True)
    for group in checkpoint["trainer"]["_trainer"]["optimizer"]["param_groups"]:
        group.pop("decoupled_weight_decay", None)
    torch.save(checkpoint, path)
    trainer = build(tmp_path, "SOLVER.OPTIMIZER", optimizer, "SOLVER.MAX_ITER", 2)
    trainer.resume_or_load()
    trainer.train()
    assert trainer.start_iter == 1 and all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_a_penalty_without_a_recurrent_layer_is_told_of(tmp_path, caplog):
    fpn = ["MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead", "MODEL.ROI_MASK_HEAD.NORM", ""]
    for overrides, said in (([], False), (fpn, True)):
        with caplog.at_level(logging.WARNING, logger="rfpn"):
            build(tmp_path, "MODEL.RECURRENT.LIPSCHITZ.WEIGHT", 1.0, *overrides)
        assert ("the model has no recurrent layer" in caplog.text) == said


def test_moments_of_other_shapes_are_refused_without_names(tmp_path):
    """Checkpoints of earlier versions have none, and fused kernels do not look at shapes."""
    build(tmp_path, "SOLVER.TRAIN_ONLY", ("backbone.fpn_lateral2",), "SOLVER.MAX_ITER", 1).train()
    path = tmp_path / "model_final.pth"
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["trainer"]["trained"]
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match="cannot be resumed, its optimizer is another"):
        build(tmp_path, "SOLVER.TRAIN_ONLY", ("backbone.fpn_lateral3",), "SOLVER.MAX_ITER", 2).resume_or_load()
    build(tmp_path, "SOLVER.TRAIN_ONLY", ("backbone.fpn_lateral2",), "SOLVER.MAX_ITER", 2).resume_or_load()


def test_moments_of_other_shapes_are_refused():
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (3, 2))]
    first, second = (torch.optim.Adam([weight], fused=True) for weight in weights)
    weights[0].square().sum().backward()
    first.step()
    assert has_shapes(first.state_dict(), first) and not has_shapes(first.state_dict(), second)
    assert has_shapes(second.state_dict(), first)


class OfOneArgument(Trainer):
    @classmethod
    def build_train_loader(cls, cfg):
        return super().build_train_loader(cfg)


class WithoutDefault(Trainer):
    @classmethod
    def build_train_loader(cls, cfg, seed):
        return super().build_train_loader(cfg, seed)


class WithoutPosition(Trainer):
    @classmethod
    def build_train_loader(cls, cfg, seed=None):
        return [[]]


@pytest.mark.parametrize(
    "kind, words",
    [
        (OfOneArgument, "OfOneArgument.build_train_loader must take cfg and seed=None"),
        (WithoutDefault, "WithoutDefault.build_train_loader must take cfg and seed=None"),
        (WithoutPosition, r"WithoutPosition.build_train_loader must give .* batch_sampler has seek\(seed, samples\)"),
    ],
)
def test_loaders_that_a_resumed_run_could_not_go_on_with_are_refused(tmp_path, kind, words):
    with pytest.raises(ValueError, match=words):
        kind(build(tmp_path).cfg)


def test_an_expected_task_that_no_evaluation_gave_is_named_after_training(tmp_path):
    trainer = build(tmp_path, "SOLVER.MAX_ITER", 1, "TEST.EXPECTED_RESULTS", [["box_proposals", "AR", 1.0, 1.0]])
    with pytest.raises(ValueError, match="the task box_proposals, which the evaluation did not give; it gave none"):
        trainer.train()


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_that_fails_in_its_last_iteration_is_not_scored(tmp_path, monkeypatch, fails):
    scored = []
    monkeypatch.setattr(Trainer, "test", classmethod(lambda *_: scored.append(1)))
    trainer = build(tmp_path, "SOLVER.MAX_ITER", 2)
    step = trainer.run_step
    monkeypatch.setattr(trainer, "run_step", lambda: 1 / 0 if fails and trainer.iter == 1 else step())
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        trainer.train()
    assert bool(scored) != fails


def test_schedule_and_precision_may_change_on_resuming(folder):
    changed = ["SOLVER.MAX_ITER", 9, "SOLVER.AMP.ENABLED", True, "SOLVER.AMP.DTYPE", "float16", "SOLVER.IMS_PER_BATCH", 1]
    trainer = build(folder, *changed)
    trainer.resume_or_load()
    assert trainer.start_iter == 2 and trainer.max_iter == 9


def test_steps_are_as_the_solver_says(tmp_path):
    half = "SOLVER.AMP.ENABLED", True, "SOLVER.AMP.DTYPE", "bfloat16"
    step = build(tmp_path, "SOLVER.SKIP_NONFINITE", 3, "SOLVER.ACCUMULATE", 2, *half)._trainer
    assert (step.skip_nonfinite, step.accumulate, step.amp_dtype) == (3, 2, torch.bfloat16)


@pytest.mark.parametrize("norm, refused", [("nnSyncBN", True), ("SyncBN", False), ("GN", False)])
def test_norms_that_stop_at_no_roi_are_refused_whatever_their_name(tmp_path, norm, refused):
    overrides = "MODEL.ROI_MASK_HEAD.NORM", norm
    with pytest.raises(ValueError, match=f"MODEL.ROI_MASK_HEAD.NORM {norm} cannot train") if refused else nullcontext():
        build(tmp_path, *overrides)


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("MODEL.ROI_HEADS.IN_FEATURES", ["p7"], "KeyError 'p7' in roi_heads.py, line .*input_shape"),
        ("MODEL.RPN.IOU_THRESHOLDS", [0.5], r"AssertionError in matcher.py, line .*: assert len\(labels\) == "),
        ("MODEL.BACKBONE.NAME", "foo", "No object named 'foo' found in 'BACKBONE' registry"),
    ],
)
def test_keys_that_detectron2_does_not_check_give_one_line(key, value, words):
    cfg = load_cfg(str(SCENES), ["MODEL.DEVICE", "cpu", key, value])
    with pytest.raises((KeyError, ValueError), match=words) as caught:
        Trainer.build_model(cfg)
    assert " " in str(caught.value)


def test_evaluations_take_the_batches_of_training_scaled_or_not(tmp_path):
    """Norms over the batch score with it; training scales its configuration, evaluation alone does not."""
    cfg = load_cfg(str(SCENES), ["SOLVER.IMS_PER_BATCH", 32, "SOLVER.REFERENCE_WORLD_SIZE", 8, "SOLVER.CHECKPOINT_PERIOD", 80])
    scaled = Trainer.auto_scale_workers(cfg, 1)
    assert scaled.SOLVER.IMS_PER_BATCH == 4 and evaluation_batch(cfg) == evaluation_batch(scaled) == 4


class Count(DatasetEvaluator):
    """Counts images."""

    def reset(self):
        self.images = 0

    def process(self, inputs, outputs):
        self.images += len(inputs)

    def evaluate(self):
        return {"count": {"images": self.images}}


class OwnEvaluator(Trainer):
    @classmethod
    def build_evaluator(cls, cfg, dataset_name, output_folder=None):
        return Count()


@pytest.mark.parametrize("kind", [None, "lvis"])
def test_evaluators_of_a_subclass_score_sets_of_any_kind(tmp_path, kind):
    records = DatasetCatalog.get("tiny_scenes")
    DatasetCatalog.register("of_another_kind", lambda: records)
    metadata = {} if kind is None else {"evaluator_type": kind}
    MetadataCatalog.get("of_another_kind").set(thing_classes=MetadataCatalog.get("tiny_scenes").thing_classes, **metadata)
    try:
        cfg = build(tmp_path, "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "SOLVER.MAX_ITER", 1).cfg.clone()
        cfg.DATASETS.TEST = ("of_another_kind",)
        remedy = "set its metadata evaluator_type to one of coco, .*, or override Trainer.build_evaluator"
        with pytest.raises(ValueError, match=f"of_another_kind: no evaluator for evaluator_type {kind!r} .*; {remedy}"):
            Trainer(cfg)
        assert OwnEvaluator(cfg).train() == {"count": {"images": len(records)}}
    finally:
        DatasetCatalog.remove("of_another_kind")
        MetadataCatalog.pop("of_another_kind")


@pytest.mark.parametrize("main", [True, False])
def test_training_gives_the_last_scores_on_the_main_process(tmp_path, monkeypatch, main):
    trainer = build(tmp_path, "SOLVER.MAX_ITER", 1)
    monkeypatch.setattr(Trainer, "test", classmethod(lambda *_: {"panoptic_seg": {"PQ": 1.0}}))
    end = trainer.after_train

    def become_another():
        end()
        monkeypatch.setattr("detectron2.utils.comm.is_main_process", lambda: main)

    monkeypatch.setattr(trainer, "after_train", become_another)
    assert trainer.train() == ({"panoptic_seg": {"PQ": 1.0}} if main else None)


def test_without_the_hook_that_evaluates_there_are_no_scores(tmp_path):
    trainer = build(tmp_path, "SOLVER.MAX_ITER", 1)
    trainer._hooks = []
    assert trainer.train() == {}


def test_layers_that_cannot_train_on_the_device_are_refused_before_training(tmp_path, monkeypatch):
    deep = ["MODEL.RESNETS.DEPTH", 50, "MODEL.RESNETS.RES2_OUT_CHANNELS", 256, "MODEL.WEIGHTS", ""]
    with pytest.raises(ValueError, match="MODEL.RESNETS.DEFORM_ON_PER_STAGE .* needs a GPU"):
        build(tmp_path, *deep, "MODEL.RESNETS.DEFORM_ON_PER_STAGE", [False, False, False, True])
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="MODEL.FPN.NORM SyncBN needs GPUs"):
        build(tmp_path, "MODEL.FPN.NORM", "SyncBN")
