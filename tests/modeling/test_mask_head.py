"""The recurrent mask head: parameter counts, losses, released checkpoints, zero RoIs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.export import TracingAdapter
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model
from detectron2.structures import BitMasks, Boxes, Instances
from detectron2.utils.events import EventStorage

from rfpn.engine.convert import convert_released
from rfpn.engine.setup import load_cfg
from rfpn.modeling import HGRUMaskHead

CONFIGS = Path(__file__).parents[2] / "configs" / "COCO-PanopticSegmentation"


@pytest.fixture(autouse=True)
def storage():
    with EventStorage():
        yield


def head(channels=32, **options):
    recurrent = {"steps": 3, "lipschitz": True, "neumann_terms": 4, **options.pop("recurrent", {})}
    settings = {"num_classes": 2, "deconv_channels": 8, "norm_groups": 8, "lipschitz_weight": 1.0, **options}
    return HGRUMaskHead(channels, recurrent=recurrent, **settings)


def proposals(count, size=14, seed=0):
    generator = torch.Generator().manual_seed(seed)
    instances = Instances((64, 64))
    instances.proposal_boxes = Boxes(torch.tensor([[4.0, 4.0, 40.0, 40.0]]).repeat(count, 1))
    instances.gt_classes = torch.zeros(count, dtype=torch.int64)
    instances.gt_masks = BitMasks(torch.rand(count, 64, 64, generator=generator) > 0.5)
    return instances


def detections(count):
    instances = Instances((64, 64))
    instances.pred_boxes = Boxes(torch.tensor([[4.0, 4.0, 40.0, 40.0]]).repeat(count, 1))
    instances.pred_classes = torch.zeros(count, dtype=torch.int64)
    return instances


@pytest.mark.parametrize(
    "config, count",
    [
        ("panoptic_fpn_R_50_1x", 45_751_590),
        ("rfpn_R_50_1x", 44_968_038),
        ("rfpn_R_50_1x_bptt", 44_968_038),
        ("rfpn_R_101_3x", 63_907_942),
    ],
)
def test_trainable_parameters(config, count):
    cfg = load_cfg(str(CONFIGS / f"{config}.yaml"), ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", ""])
    model = build_model(cfg)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == count


@pytest.mark.parametrize("gradient", ["bptt", "tbptt", "rbp"])
def test_C7_every_parameter_gets_a_gradient(gradient):
    module = head(recurrent={"gradient": gradient})
    losses = module(torch.rand(5, 32, 14, 14), [proposals(5)])
    assert losses.keys() == {"loss_mask", "loss_lipschitz"}
    sum(losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    assert len(module.state_dict()) == len({id(value) for value in module.state_dict(keep_vars=True).values()})


def test_C1_zero_rois_in_training_give_zero_losses_and_zero_gradients():
    module = head()
    losses = module(torch.zeros(0, 32, 14, 14), [proposals(0)])
    total = sum(losses.values())
    assert total == 0
    total.backward()
    assert all(p.grad is not None and (p.grad == 0).all() for p in module.parameters())


@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
def test_C1_zero_rois_in_evaluation(tolerance):
    module = head(recurrent={"test_tolerance": tolerance}).eval()
    with torch.no_grad():
        (result,) = module(torch.zeros(0, 32, 14, 14), [detections(0)])
    assert result.pred_masks.shape == (0, 1, 28, 28)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_C9_large_features_give_finite_losses_under_autocast(dtype):
    torch.manual_seed(0)
    module = head(recurrent={"steps": 20})
    with torch.autocast("cpu", dtype):
        losses = module(1e3 * torch.rand(4, 32, 14, 14), [proposals(4)])
    assert losses["loss_lipschitz"].dtype == torch.float32 and all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_a_mixed_batch_trains_with_one_empty_image():
    module = head()
    losses = module(torch.rand(3, 32, 14, 14), [proposals(0), proposals(3)])
    assert losses["loss_mask"] > 0


def test_E6_C5_each_roi_stands_alone_in_evaluation():
    module = head(recurrent={"steps": 8}).eval()
    x = torch.rand(8, 32, 14, 14)
    with torch.no_grad():
        together = module.layers(module.recurrent(x).hidden)
        alone = torch.cat([module.layers(module.recurrent(one[None]).hidden) for one in x])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stop", [{"test_tolerance": 1e-2}, {"solver": "anderson", "solver_tolerance": 1e-2}])
def test_stopping_per_roi_says_how_many_steps_were_used(stop):
    module = head(recurrent={"test_steps": 200, **stop}).eval()
    x = torch.cat([torch.zeros(2, 32, 14, 14), 5 * torch.rand(3, 32, 14, 14)])
    with torch.no_grad():
        first, second = module(x, [detections(2), detections(3)])
        (alone,) = module(x[3:4], [detections(1)])
    assert len(first.mask_steps) == 2 and len(second.mask_steps) == 3
    assert (first.mask_steps >= 1).all() and (second.mask_steps < 200).all()
    assert alone.mask_steps[0] == second.mask_steps[1]


def test_an_unknown_norm_is_named():
    with pytest.raises(ValueError, match="MODEL.ROI_MASK_HEAD.NORM 'none' is no norm"):
        head(norm="none")


def test_a_norm_that_does_not_fit_the_channels_is_named():
    with pytest.raises(ValueError, match="MODEL.ROI_MASK_HEAD.NORM GN cannot normalise 48 channels, use BN: "):
        head(48, norm="GN")


def test_a_weight_without_a_penalty_is_named():
    with pytest.raises(ValueError, match="HGRUMaskHead lipschitz_weight needs a recurrent layer with lipschitz=True"):
        head(recurrent={"lipschitz": False})


def test_channels_that_the_gate_cannot_take_are_named():
    cfg = load_cfg(str(CONFIGS / "rfpn_R_50_1x.yaml"), ["MODEL.RECURRENT.NORM_GROUPS", "2"])
    with pytest.raises(ValueError, match="MODEL.FPN.OUT_CHANNELS must be divisible by 4 for the hGRU mask head, got 6"):
        HGRUMaskHead.from_config(cfg, ShapeSpec(channels=6, height=14, width=14))


def test_the_deconvolution_starts_as_mask_rcnns():
    # Kaiming's normal of the outputs' fan, as in Detectron2's own mask head
    weight = head(64, deconv_channels=16).deconv.weight.detach()
    assert abs(float(weight.std()) / (2 / (64 * 4)) ** 0.5 - 1) < 0.05


def test_the_predictor_starts_as_mask_rcnns():
    predictor = head(deconv_channels=256, num_classes=80).predictor
    assert float(predictor.weight.detach().std()) == pytest.approx(0.001, rel=0.05) and not predictor.bias.any()


def test_penalty_is_weighted():
    x, found = torch.rand(3, 32, 14, 14) * 20, []
    for weight in (1.0, 10.0):
        torch.manual_seed(0)
        model = head(lipschitz_weight=weight, recurrent={"coefficient": 0.0})
        found.append(model(x, [proposals(3)])["loss_lipschitz"])
    assert found[0] > 0
    torch.testing.assert_close(found[1], 10 * found[0])


def test_residuals_are_those_of_the_states():
    torch.manual_seed(0)
    model = head().eval()
    x = torch.rand(5, 32, 14, 14) * torch.arange(1, 6).view(5, 1, 1, 1)
    with torch.no_grad():
        first, second = model(x, [detections(2), detections(3)])
        wanted = model.recurrent(x).residual
    assert len(wanted.unique()) == 5
    torch.testing.assert_close(torch.cat([first.mask_residual, second.mask_residual]), wanted)


def test_test_steps_apart_from_training_steps():
    module = head(recurrent={"steps": 2, "test_steps": 7})
    assert module.recurrent(torch.rand(1, 32, 14, 14)).steps.item() == 2
    with torch.no_grad():
        assert module.eval().recurrent(torch.rand(1, 32, 14, 14)).steps.item() == 7


def test_released_checkpoint_gives_the_released_logits(reference):
    released = np.load(reference / "golden" / "released_mask_head_c64.npz")
    state = {k.removeprefix("state_dict/"): torch.from_numpy(released[k]) for k in released if k.startswith("state")}
    module = head(64, num_classes=5, deconv_channels=64, norm_groups=32, recurrent={"steps": 20}).eval()
    converted = convert_released(state, module)
    names = {name.removeprefix("roi_heads.mask_head."): value for name, value in converted.items()}
    module.load_state_dict(names)
    for steps in (20, 30):
        module.recurrent.test_steps = steps
        with torch.no_grad():
            logits = module.layers(module.recurrent(torch.from_numpy(released["x"])).hidden)
        expected = torch.from_numpy(released[f"logits_{steps}"])
        assert (logits - expected).norm() / expected.norm() < 1e-4


def test_copies_of_the_released_cell_must_agree(reference):
    released = np.load(reference / "golden" / "released_mask_head_c64.npz")
    state = {k.removeprefix("state_dict/"): torch.from_numpy(released[k]) for k in released if k.startswith("state")}
    state["roi_heads.mask_head.recurrent.mu"] = state["roi_heads.mask_head.recurrent.mu"] + 1
    with pytest.raises(ValueError, match="copies of the cell differ in mu"):
        convert_released(state, head(64, norm_groups=32))


@pytest.mark.parametrize(
    "override, key",
    [
        (["MODEL.RECURRENT.STEPS", "0"], "MODEL.RECURRENT.STEPS"),
        (["MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT", "1.0"], "MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT"),
        (["MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT", "-0.1"], "MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT"),
        (["MODEL.RECURRENT.NORM_GROUPS", "24"], "MODEL.RECURRENT.NORM_GROUPS"),
        (["MODEL.RECURRENT.GRADIENT", "magic"], "MODEL.RECURRENT.GRADIENT"),
        (["MODEL.RECURRENT.KERNEL_SIZE", "4"], "MODEL.RECURRENT.KERNEL_SIZE"),
        (["MODEL.RECURRENT.CELL", "conv_lstm"], "MODEL.RECURRENT.CELL"),
        (["MODEL.RECURRENT.FORM", "printed"], "MODEL.RECURRENT.FORM"),
        (["MODEL.ROI_MASK_HEAD.CONV_DIM", "0"], "MODEL.ROI_MASK_HEAD.CONV_DIM"),
        (["MODEL.ROI_MASK_HEAD.POOLER_TYPE", "ROIAlignRotated"], "MODEL.ROI_MASK_HEAD.POOLER_TYPE"),
        (["MODEL.ROI_MASK_HEAD.POOLER_TYPE", ""], "MODEL.ROI_MASK_HEAD.POOLER_TYPE"),
    ],
)
def test_a_value_that_cannot_work_is_named(override, key):
    cfg = load_cfg(str(CONFIGS / "rfpn_R_50_1x.yaml"), [])
    # as a program of one's own may have it, without load_cfg
    cfg.merge_from_list(override)
    with pytest.raises(ValueError, match=key):
        HGRUMaskHead(cfg, ShapeSpec(channels=256, height=14, width=14))


@pytest.mark.filterwarnings("ignore")
def test_a_traced_model_takes_any_number_of_detections():
    """As Detectron2's tools deploy models."""
    quick = CONFIGS.parent / "quick_schedules" / "rfpn_quick.yaml"
    options = ["MODEL.DEVICE", "cpu", "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0"]
    torch.manual_seed(0)
    model = build_model(load_cfg(str(quick), [*options, "TEST.DETECTIONS_PER_IMAGE", "7"])).eval()
    pictures = [[{"image": torch.rand(3, 64, 64) * 50 * i}] for i in range(1, 6)]

    def infer(model, inputs):
        return [{"instances": model.inference(inputs, do_postprocess=False)[0]}]

    with torch.no_grad():
        scores = torch.cat([infer(model, picture)[0]["instances"].scores for picture in pictures])
        model.roi_heads.box_predictor.test_score_thresh = float(scores.median())
        found = [infer(model, picture)[0]["instances"] for picture in pictures]
        counts = [len(instances) for instances in found]
        assert len(set(counts)) > 1
        adapter = TracingAdapter(model, pictures[np.argmax(counts)], infer)
        traced = torch.jit.trace(adapter, adapter.flattened_inputs, check_trace=False)
        for (picture,), wanted in zip(pictures, found):
            instances = adapter.outputs_schema(traced(picture["image"]))[0]["instances"]
            for name in ("scores", "pred_masks", "mask_residual"):
                torch.testing.assert_close(instances.get(name), wanted.get(name))
