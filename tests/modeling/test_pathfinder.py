"""The Pathfinder meta-architecture."""

from pathlib import Path

import pytest
import torch
from detectron2.modeling import build_model
from fvcore.nn import FlopCountAnalysis

from rfpn.config import get_cfg
from rfpn.layers import ConvLSTMCell, HGRUCell, RecurrentLayer
from rfpn.modeling import PathfinderNet
from rfpn.modeling.feedforward import FeedforwardLayers
from rfpn.modeling.losses import focal_loss
from tests.problems import assert_close, gradients

CONFIGS = Path(__file__).parents[2] / "configs" / "Pathfinder"


def config(name="hgru15_crbp20_pf14", *overrides):
    cfg = get_cfg()
    cfg.merge_from_file(str(CONFIGS / f"{name}.yaml"))
    cfg.merge_from_list(["MODEL.DEVICE", "cpu", *overrides])
    return cfg


def batch(count=3, size=20, seed=0):
    torch.manual_seed(seed)
    return [
        {
            "image": torch.randint(0, 256, (1, size, size), dtype=torch.uint8),
            "sem_seg": torch.randint(0, 2, (size, size), dtype=torch.uint8),
        }
        for _ in range(count)
    ]


def small_net(gradient="rbp", steps=4, cell=HGRUCell, weight=1.0, solver="steps", **options):
    torch.manual_seed(0)
    layer = RecurrentLayer(cell(5, 3), steps, gradient=gradient, lipschitz=weight > 0, solver=solver)
    return PathfinderNet(layer=layer, channels=5, lipschitz_weight=weight, **options)


@pytest.mark.parametrize(
    "name, count",
    [
        ("hgru15_crbp20_pf14", 284_127),
        ("hgru15_rbp20_pf14", 284_127),
        ("hgru15_bptt6_pf14", 284_127),
        ("conv_lstm15_bptt6_pf14", 1_126_452),
        ("feedforward6_pf14", 845_527),
    ],
)
def test_trainable_parameters_as_published(name, count):
    model = build_model(config(name))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == count


@pytest.mark.parametrize("cell", [HGRUCell, ConvLSTMCell])
@pytest.mark.parametrize("gradient, every", [("bptt", False), ("bptt", True), ("tbptt", False), ("rbp", False)])
@pytest.mark.parametrize("amp", [False, True])
def test_C7_every_method_reaches_every_parameter(cell, gradient, every, amp):
    model = small_net(gradient, cell=cell, supervise_all_steps=every)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        losses = model(batch())
    assert losses.keys() == {"loss_segmentation", "loss_lipschitz"}
    sum(losses.values()).backward()
    assert all(value.dtype == torch.float32 and value.isfinite() for value in losses.values())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_penalty_is_weighted_and_absent_where_it_is_off():
    torch.manual_seed(1)
    one, ten = (small_net(weight=weight) for weight in (1.0, 10.0))
    for model in (one, ten):
        model.layer.cell.kappa.data.fill_(40.0)  # an expanding cell, so that the penalty is not zero
    small, large = (model(batch())["loss_lipschitz"] for model in (one, ten))
    assert small > 0
    torch.testing.assert_close(large, 10 * small)
    assert small_net(weight=0.0)(batch()).keys() == {"loss_segmentation"}


def test_supervising_all_steps_is_the_mean_over_their_readouts():
    model = small_net("bptt", weight=0.0, supervise_all_steps=True)
    inputs = batch()
    target = torch.stack([x["sem_seg"] for x in inputs])
    expected = torch.stack([focal_loss(logits, target) for logits, _ in model.time_course(inputs, 4)]).mean()
    torch.testing.assert_close(model(inputs)["loss_segmentation"].detach(), expected)


def test_penalty_is_the_same_with_and_without_supervision_of_all_steps():
    losses = []
    for every in (False, True):
        model = small_net("bptt", supervise_all_steps=every)
        model.layer.cell.kappa.data.fill_(40.0)
        losses.append(model(batch())["loss_lipschitz"])
    assert losses[0] > 0
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("every", [False, True])
def test_loss_is_the_configured_one(gamma, every):
    model = small_net("bptt", steps=1, supervise_all_steps=every, focal_gamma=gamma)
    loss = model(batch())["loss_segmentation"]
    logits = torch.stack([output["sem_seg"] for output in model.eval()(batch())])
    target = torch.stack([record["sem_seg"] for record in batch()])
    torch.testing.assert_close(loss, focal_loss(logits, target, gamma))
    if gamma == 0:
        torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, target.long()))


def test_residuals_are_those_of_the_states():
    model = small_net(steps=3).eval()
    with torch.no_grad():
        found = torch.stack([output["residual"] for output in model(batch())])
        wanted = model.layer(model.drive(batch())).residual
    assert (wanted > 0).all()
    torch.testing.assert_close(found, wanted)


def test_supervision_of_all_steps_without_grad():
    model = small_net("bptt", supervise_all_steps=True)
    with torch.no_grad():
        losses = model(batch())
    assert losses["loss_lipschitz"] == 0
    assert losses["loss_segmentation"] == small_net("bptt", supervise_all_steps=True)(batch())["loss_segmentation"]
    assert model.layer.diagnostics.keys() == {"residual", "penalty", "unconverged_share"}


def test_supervision_of_all_steps_compiles_with_the_gradients_of_the_eager_model():
    found = []
    for compiled in (False, True):
        torch.compiler.reset()
        model = small_net("bptt", supervise_all_steps=True)
        model.layer.coefficient, model.layer.fast = 0.0, "off"
        losses = (torch.compile(model, backend="aot_eager") if compiled else model)(batch())
        assert losses["loss_lipschitz"] > 0
        found.append(gradients(sum(losses.values()), model))
    assert_close(*found, 1e-5)


def test_time_course_ends_at_what_evaluation_returns_and_keeps_grad_mode():
    model, inputs = small_net().eval(), batch()
    course = model.time_course(inputs, 4)
    first, _ = next(course)
    assert torch.is_grad_enabled()
    last, residual = list(course)[-1]
    outputs = model(inputs)
    assert first.shape == (3, 2, 20, 20) and outputs[0]["sem_seg"].shape == (2, 20, 20)
    torch.testing.assert_close(last, torch.stack([x["sem_seg"] for x in outputs]))
    torch.testing.assert_close(residual, torch.stack([x["residual"] for x in outputs]))


def test_test_steps_apart_from_training_steps():
    model = build_model(
        config("hgru15_crbp20_pf14", "MODEL.RECURRENT.KERNEL_SIZE", 3, "MODEL.RECURRENT.TEST_STEPS", 7)
    ).eval()
    inputs = batch(2)
    expected, _ = list(model.time_course(inputs, 7))[-1]
    torch.testing.assert_close(torch.stack([x["sem_seg"] for x in model(inputs)]), expected)


def test_starts_with_the_prior_of_rare_targets():
    model = small_net().eval()
    share = torch.stack([x["sem_seg"] for x in model(batch())]).softmax(1)[:, 1]
    model.readout.weight.data.zero_()
    prior = torch.stack([x["sem_seg"] for x in model(batch())]).softmax(1)[:, 1]
    torch.testing.assert_close(prior, torch.full_like(prior, 0.01))
    assert share.mean() < 0.1


def test_C9_autocast_leaves_the_drive_alone():
    model, inputs = small_net(), batch(1)
    with torch.autocast("cpu", torch.bfloat16):
        drive = model.drive(inputs)
    assert torch.equal(drive, model.drive(inputs))


def test_drive_is_the_squared_filter_response_of_the_image_over_255():
    model = small_net()
    inputs = batch(1)
    image = inputs[0]["image"][None].float() / 255
    torch.testing.assert_close(model.drive(inputs), model.filters(image) ** 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("solver", ["steps", "anderson"])
def test_a_model_of_another_type_trains_and_predicts(dtype, solver):
    net = small_net(solver=solver).to(dtype)
    wanted = small_net(solver=solver).eval()(batch())[0]["sem_seg"]
    losses = net.train()(batch())
    sum(losses.values()).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())
    logits = net.eval()(batch())[0]["sem_seg"]
    assert logits.dtype == dtype
    # batch norm of small values leaves few digits of bfloat16, and a search fewer
    half = {"steps": 0.25, "anderson": 0.5}[solver]
    torch.testing.assert_close(logits.float(), wanted, rtol=0, atol=half if dtype == torch.bfloat16 else 1e-4)


def test_feedforward_control_trains_and_has_no_time_course():
    model = PathfinderNet(layer=FeedforwardLayers(5, 3, 2), channels=5)
    model(batch())["loss_segmentation"].backward()
    assert all(p.grad is not None for p in model.parameters())
    with pytest.raises(ValueError, match="no steps"):
        next(model.time_course(batch(), 3))
    with pytest.raises(ValueError, match="PathfinderNet lipschitz_weight needs a recurrent layer with lipschitz=True"):
        PathfinderNet(layer=FeedforwardLayers(5, 3, 2), channels=5, lipschitz_weight=1.0)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["MODEL.PATHFINDER.LAYER", "attention"], "MODEL.PATHFINDER.LAYER must be one of recurrent, feedforward"),
        (["MODEL.PATHFINDER.LOSS", "dice"], "MODEL.PATHFINDER.LOSS must be one of focal, cross_entropy"),
        (["MODEL.RECURRENT.CELL", "gru"], "MODEL.RECURRENT.CELL must be one of hgru, conv_lstm"),
        (["MODEL.RECURRENT.KERNEL_SIZE", 4], "MODEL.RECURRENT.KERNEL_SIZE must be odd"),
        (["MODEL.PATHFINDER.CHANNELS", 26], "MODEL.PATHFINDER.CHANNELS must be at most 25"),
        (["MODEL.PATHFINDER.FEEDFORWARD_LAYERS", 0], "MODEL.PATHFINDER.FEEDFORWARD_LAYERS must be at least 1"),
        (["MODEL.PATHFINDER.FOCAL_GAMMA", 0.5], "MODEL.PATHFINDER.FOCAL_GAMMA must be 0 or at least 1"),
        (["MODEL.PATHFINDER.SUPERVISE_ALL_STEPS", True], "LAYER 'recurrent', RECURRENT.GRADIENT 'bptt' and EXTRA_STEPS 0"),
        (["MODEL.PATHFINDER.LAYER", "feedforward"], "MODEL.RECURRENT.LIPSCHITZ.WEIGHT must be 0"),
        (["MODEL.RECURRENT.GRADIENT", "adjoint"], "MODEL.RECURRENT.GRADIENT must be one of"),
    ],
)
def test_unusable_settings_are_named(overrides, message):
    with pytest.raises(ValueError, match=message):
        build_model(config("hgru15_crbp20_pf14", *overrides))


def test_images_of_unequal_size_or_colour_are_refused():
    with pytest.raises(ValueError, match="INPUT.PATHFINDER_SIZE"):
        small_net()(batch(1, 20) + batch(1, 22))
    with pytest.raises(ValueError, match="grey"):
        small_net()([{"image": torch.zeros(3, 8, 8), "sem_seg": torch.zeros(8, 8)}])
    with pytest.raises(ValueError, match="single pixel"):
        small_net()(batch(1, 1))
    assert small_net()(batch(2, 1))["loss_segmentation"].isfinite()
    tall = {"image": torch.ones(1, 2, 1), "sem_seg": torch.zeros(2, 1)}
    assert small_net()([tall])["loss_segmentation"].isfinite()


@pytest.mark.filterwarnings("ignore")
def test_operations_can_be_counted():
    net = small_net().eval()
    counts = FlopCountAnalysis(net, (batch(2),)).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    # 4 steps of two 3×3 kernels and two gates, 5 channels each way
    assert counts.total() > 4 * 2 * 20 * 20 * 25 * 2 * 10
