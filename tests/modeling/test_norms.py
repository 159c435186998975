"""Norms of the shipped configurations, on one process and with zero RoIs."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from detectron2.layers import NaiveSyncBatchNorm, ShapeSpec
from detectron2.modeling import ROI_MASK_HEAD_REGISTRY, build_model
from detectron2.modeling.roi_heads.mask_head import build_mask_head
from detectron2.structures import BitMasks, Boxes, Instances
from detectron2.utils.events import EventStorage
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from rfpn.engine.setup import load_cfg
from rfpn.modeling import HGRUMaskHead
from rfpn.modeling.norms import check_device, check_norms, widen_statistics
from tests.engine.test_trainer import build

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
# small enough for a test; no norm is changed
SMALL = ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", "", "MODEL.RECURRENT.STEPS", "2", "MODEL.RECURRENT.NEUMANN_TERMS", "1"]
SMALL_BACKBONE = ["MODEL.RESNETS.DEPTH", "18", "MODEL.RESNETS.RES2_OUT_CHANNELS", "64", "MODEL.RESNETS.WIDTH_PER_GROUP", "64"]
SMALL_BACKBONE += ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", "4", "MODEL.RPN.POST_NMS_TOPK_TRAIN", "20"]
SMALL_BACKBONE += ["MODEL.ROI_BOX_HEAD.FC_DIM", "32", "MODEL.ROI_BOX_HEAD.NUM_FC", "1"]


def picture(cfg, number=0):
    """A training record of random content with one instance."""
    generator = torch.Generator().manual_seed(number)
    if cfg.MODEL.META_ARCHITECTURE == "PathfinderNet":
        image = torch.randint(256, (1, 32, 32), generator=generator, dtype=torch.uint8)
        return {"image": image, "sem_seg": (image[0] > 200).to(torch.uint8)}
    instances = Instances((64, 64))
    instances.gt_boxes = Boxes(torch.tensor([[8.0, 8.0, 40.0, 40.0]]))
    instances.gt_classes = torch.zeros(1, dtype=torch.int64)
    instances.gt_masks = BitMasks(torch.ones(1, 64, 64, dtype=torch.bool))
    image = torch.randint(256, (3, 64, 64), generator=generator, dtype=torch.uint8)
    return {"image": image, "sem_seg": torch.zeros(64, 64, dtype=torch.int64), "instances": instances}


def train_one_step(file, *overrides):
    cfg = load_cfg(str(CONFIGS / file), SMALL + list(overrides))
    if cfg.MODEL.META_ARCHITECTURE == "PanopticFPN":
        cfg.merge_from_list(SMALL_BACKBONE)
    check_norms(cfg)
    torch.manual_seed(0)
    model = build_model(cfg).train()
    with EventStorage():
        losses = model([picture(cfg, 0), picture(cfg, 1)])
    total = sum(losses.values())
    total.backward()
    assert total.isfinite()
    return model


@pytest.mark.parametrize("file", FILES)
def test_C3_every_configuration_trains_on_one_process(file):
    train_one_step(file)


@pytest.mark.parametrize("part", ["RESNETS", "FPN", "SEM_SEG_HEAD", "ROI_MASK_HEAD"])
def test_C3_sync_bn_trains_on_one_process(part):
    train_one_step("COCO-PanopticSegmentation/rfpn_R_50_1x.yaml", f"MODEL.{part}.NORM", "SyncBN")


@pytest.mark.parametrize(
    "overrides, key",
    [
        (["MODEL.ROI_MASK_HEAD.NORM", "SyncBN"], "MODEL.ROI_MASK_HEAD.NORM"),
        (["MODEL.ROI_BOX_HEAD.NORM", "SyncBN", "MODEL.ROI_BOX_HEAD.NUM_CONV", "1"], "MODEL.ROI_BOX_HEAD.NORM"),
    ],
)
def test_C2_sync_bn_in_detectron2s_heads_is_refused(overrides, key):
    cfg = load_cfg(str(CONFIGS / "COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml"), overrides)
    with pytest.raises(ValueError, match=f"{key} SyncBN .*use GN or naiveSyncBN_N"):
        check_norms(cfg)


@pytest.mark.parametrize(
    "overrides",
    [
        ["MODEL.ROI_BOX_HEAD.NORM", "SyncBN"],
        ["MODEL.ROI_MASK_HEAD.NORM", "SyncBN", "MODEL.MASK_ON", "False", "MODEL.META_ARCHITECTURE", "GeneralizedRCNN"],
    ],
)
def test_norms_of_convolutions_that_there_are_not_are_not_refused(overrides):
    check_norms(load_cfg(str(CONFIGS / "COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml"), overrides))


def test_sync_bn_of_a_head_derived_from_the_recurrent_one_is_not_refused(monkeypatch):
    monkeypatch.setitem(ROI_MASK_HEAD_REGISTRY._obj_map, "DerivedHead", type("DerivedHead", (HGRUMaskHead,), {}))
    train_one_step("COCO-PanopticSegmentation/rfpn_R_50_1x.yaml", "MODEL.ROI_MASK_HEAD.NAME", "DerivedHead")


def test_sync_bn_of_a_head_made_by_a_function_is_refused(monkeypatch):
    monkeypatch.setitem(ROI_MASK_HEAD_REGISTRY._obj_map, "made_head", lambda cfg, input_shape: None)
    file = CONFIGS / "COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml"
    overrides = ["MODEL.ROI_MASK_HEAD.NAME", "made_head", "MODEL.ROI_MASK_HEAD.NORM", "SyncBN"]
    with pytest.raises(ValueError, match="MODEL.ROI_MASK_HEAD.NORM SyncBN cannot train made_head"):
        check_norms(load_cfg(str(file), overrides))


def small_model(*overrides):
    file = CONFIGS / "COCO-PanopticSegmentation/rfpn_R_50_1x.yaml"
    cfg = load_cfg(str(file), [*SMALL, *SMALL_BACKBONE, *overrides])
    return build_model(cfg), cfg


@pytest.mark.parametrize("part", ["RESNETS", "FPN", "SEM_SEG_HEAD"])
@pytest.mark.parametrize("norm, processes, refused", [("SyncBN", 2, True), ("SyncBN", 1, False), ("naiveSyncBN", 2, False)])
def test_C3_sync_bn_of_several_cpu_processes_is_refused(monkeypatch, part, norm, processes, refused):
    model, cfg = small_model(f"MODEL.{part}.NORM", norm)
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: processes)
    words = f"MODEL.{part}.NORM SyncBN needs GPUs where there are several processes; use naiveSyncBN or BN"
    with pytest.raises(ValueError, match=words) if refused else nullcontext():
        check_device(model, cfg)
    cfg.MODEL.DEVICE = "cuda"
    check_device(model, cfg)


def test_C3_sync_bn_of_a_retina_net_is_refused_there_too(monkeypatch):
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="MODEL.RETINANET.NORM SyncBN needs GPUs"):
        check_device(torch.nn.SyncBatchNorm(2), load_cfg("", ["MODEL.DEVICE", "cpu", "MODEL.RETINANET.NORM", "SyncBN"]))


def test_sync_bn_of_a_part_that_the_model_lacks_is_not_refused(monkeypatch):
    model, cfg = small_model("MODEL.SEM_SEG_HEAD.NORM", "SyncBN", "MODEL.META_ARCHITECTURE", "GeneralizedRCNN")
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 2)
    check_device(model, cfg)


@pytest.mark.parametrize("modulated", ["True", "False"])
@pytest.mark.parametrize("device, compiled, refused", [("cpu", True, True), ("cuda", False, True), ("cuda", True, False)])
def test_deformable_convolutions_need_a_gpu_and_compiled_operators(monkeypatch, modulated, device, compiled, refused):
    stages = ["MODEL.RESNETS.DEFORM_ON_PER_STAGE", "[False, False, False, True]", "MODEL.RESNETS.DEFORM_MODULATED", modulated]
    model, cfg = small_model("MODEL.RESNETS.DEPTH", "50", *stages)
    cfg.MODEL.DEVICE = device
    monkeypatch.setitem(sys.modules, "detectron2._C", sys if compiled else None)
    monkeypatch.delattr("detectron2._C", raising=False)
    words = r"MODEL.RESNETS.DEFORM_ON_PER_STAGE \[False, False, False, True\] needs a GPU to train, and .*; set it to \[False"
    with pytest.raises(ValueError, match=words) if refused else nullcontext():
        check_device(model, cfg)


@pytest.mark.parametrize("modulated", ["True", "False"])
def test_frozen_deformable_convolutions_serve_a_cpu(modulated):
    stages = ["MODEL.RESNETS.DEFORM_ON_PER_STAGE", "[False, False, False, True]", "MODEL.RESNETS.DEFORM_MODULATED", modulated]
    model, cfg = small_model("MODEL.RESNETS.DEPTH", "50", *stages)
    model.backbone.requires_grad_(False)
    with pytest.raises(ValueError, match="DEFORM_ON_PER_STAGE") if modulated == "True" else nullcontext():
        check_device(model, cfg)


def mask_head(name, norm):
    """A small mask head, in training."""
    overrides = [*SMALL, "MODEL.ROI_MASK_HEAD.NAME", name, "MODEL.ROI_MASK_HEAD.NORM", norm]
    overrides += ["MODEL.ROI_MASK_HEAD.NUM_CONV", "1", "MODEL.ROI_MASK_HEAD.CONV_DIM", "32", "MODEL.MASK_ON", "True"]
    cfg = load_cfg("", overrides)
    check_norms(cfg)
    torch.manual_seed(0)
    return build_mask_head(cfg, ShapeSpec(channels=32, height=14, width=14)).train()


def rois(count):
    instances = Instances((64, 64))
    instances.proposal_boxes = Boxes(torch.tensor([[4.0, 4.0, 40.0, 40.0]]).repeat(count, 1))
    instances.gt_classes = torch.zeros(count, dtype=torch.int64)
    instances.gt_masks = BitMasks(torch.ones(count, 64, 64, dtype=torch.bool))
    return torch.rand(count, 32, 14, 14), [instances]


HEADS = [("HGRUMaskHead", "SyncBN"), ("HGRUMaskHead", "GN"), ("MaskRCNNConvUpsampleHead", "GN")]
HEADS += [("MaskRCNNConvUpsampleHead", "naiveSyncBN_N")]


@pytest.mark.parametrize("name, norm", HEADS)
def test_C2_no_rois_on_one_process(name, norm):
    head = mask_head(name, norm)
    with EventStorage():
        loss = sum(head(*rois(0)).values())
    loss.backward()
    assert loss == 0 and all(p.grad is not None and (p.grad == 0).all() for p in head.parameters())


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    gradients = {}
    for name, norm in HEADS:
        head = DistributedDataParallel(mask_head(name, norm), broadcast_buffers=False)
        with EventStorage():
            sum(head(*rois(3 * rank)).values()).backward()
        gradients[name, norm] = [p.grad for p in head.parameters()]
    torch.save(gradients, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def test_C2_no_rois_on_one_of_two_processes(tmp_path):
    # a fork of a process that has used a GPU cannot differentiate
    multiprocessing.start_processes(work, (str(tmp_path),), nprocs=2, start_method="spawn")
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for head in HEADS:
        assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(one[head], two[head], strict=True))
        assert sum(g.abs().sum() for g in one[head]) > 0


def test_C5_the_readout_norm_updates_its_statistics_once_a_forward():
    head = mask_head("HGRUMaskHead", "SyncBN")
    head.recurrent.steps = 20
    with EventStorage():
        head(*rois(4))
    assert head.norm.num_batches_tracked == 1


@pytest.mark.parametrize("mode", ["", "N"])
def test_synchronised_norms_take_their_statistics_in_float32(mode, monkeypatch):
    """Also under bfloat16, which Detectron2 leaves as it is."""
    for module in ("comm", "dist"):
        monkeypatch.setattr(f"detectron2.layers.batch_norm.{module}.get_world_size", lambda: 2)
    norm = NaiveSyncBatchNorm(3, stats_mode=mode)
    taken = []
    monkeypatch.setattr("detectron2.layers.batch_norm.differentiable_all_reduce", lambda t: taken.append(t) or 2 * t)
    widen_statistics(torch.nn.Sequential(norm))
    x = (torch.rand(4, 3, 5, 5) + 30).to(torch.bfloat16)
    found, wide = norm(x).float(), x.float()
    mean, variance = wide.mean((0, 2, 3), keepdim=True), wide.var((0, 2, 3), unbiased=False, keepdim=True)
    assert all(t.dtype == torch.float32 for t in taken)
    torch.testing.assert_close(found, (wide - mean) / (variance + norm.eps).sqrt(), rtol=0.02, atol=0.05)
    assert norm.eval()(x).dtype == torch.bfloat16
    for module in ("comm", "dist"):
        monkeypatch.setattr(f"detectron2.layers.batch_norm.{module}.get_world_size", lambda: 1)
    assert norm.train()(x).dtype == torch.bfloat16


@pytest.mark.usefixtures("scenes")
def test_so_do_those_of_a_trainer(tmp_path):
    modules = build(tmp_path, "MODEL.FPN.NORM", "naiveSyncBN").model.modules()
    norms = [module for module in modules if isinstance(module, NaiveSyncBatchNorm)]
    assert norms and all(norm._forward_pre_hooks for norm in norms)
