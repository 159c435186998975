"""Each argument of RecurrentLayer has its effect."""

import pytest
import torch

from rfpn.fixed_point import lipschitz_penalty, relative_residual
from rfpn.layers import HGRUCell, RecurrentLayer
from tests.layers.test_recurrent import METHODS
from tests.problems import ConvCell, GainCell, LinearCell, TanhCell, assert_close, gradients, random, relative_error


def test_neumann_tolerance_ends_series():
    lengths = []
    for tolerance in (0.0, 0.1):
        layer = RecurrentLayer(LinearCell(radius=0.5), 30, neumann_terms=20, neumann_tolerance=tolerance)
        layer(random((4, 6))).hidden.sum().backward()
        lengths.append(layer.diagnostics["neumann_length"].item())
    assert lengths[0] == 20 and 1 <= lengths[1] < 10


def test_growth_limit_cuts_series():
    shares = []
    for limit in (1.2, 4.0):  # terms grow as 1.1^k
        layer = RecurrentLayer(GainCell(), 1, neumann_terms=10, growth_limit=limit)
        layer(GainCell.input([1.1, 0.5])).hidden.sum().backward()
        shares.append(layer.diagnostics["truncated_share"].item())
    assert shares == [0.5, 0.0]


@pytest.mark.parametrize("probe", ["ones", "rademacher", "sample_signs"])
def test_probe_is_that_of_the_penalty(probe):
    x, cell = random((4, 6)), TanhCell(radius=2.0)
    layer = RecurrentLayer(cell, 5, lipschitz=True, coefficient=0.0, probe=probe, two_sided=True)
    torch.manual_seed(3)
    found = layer(x).penalty
    with torch.no_grad():
        state = torch.zeros_like(x)
        for _ in range(4):
            state = cell(x, state)
    state.requires_grad_()
    torch.manual_seed(3)
    wanted = lipschitz_penalty(cell(x, state), state, 0.0, probe=probe, two_sided=True)
    torch.testing.assert_close(found, wanted)
    assert found > 0


@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
def test_secant_penalty_and_its_gradient(gradient):
    x, cell = random((4, 6)), TanhCell(radius=2.0)
    layer = RecurrentLayer(cell, 5, gradient=gradient, lipschitz=True, coefficient=0.2, probe="secant")
    penalty = layer(x).penalty
    states = [torch.zeros_like(x)]
    for step in range(6):
        states.append(cell(x, states[-1].detach()))
    quotients = (states[6] - states[5]).norm(dim=1) / (states[5] - states[4]).detach().norm(dim=1)
    wanted = (quotients - 0.2).clamp(min=0).square().mean()
    torch.testing.assert_close(penalty, wanted)
    assert penalty > 0
    assert_close(gradients(penalty, cell), gradients(wanted, cell), 1e-9)


@pytest.mark.parametrize("probe, extra_steps, settles", [("ones", 5, False), ("secant", 0, False), ("secant", 5, True)])
def test_E10_secant_ends_a_cycle_that_column_sums_do_not_see(probe, extra_steps, settles):
    """tanh of a rotation by 120° that expands: its column sums are 0.48 and -1.8, its states run in a cycle.

    Motions along the cycle differ in length, so that at one number of steps it passes for a contraction.
    """
    torch.manual_seed(0)
    cell, x = TanhCell(size=2), 0.1 * random((4, 2))
    cell.weight.data = 1.3 * torch.tensor([[-0.5, -(0.75**0.5)], [0.75**0.5, -0.5]], dtype=torch.float64)
    layer = RecurrentLayer(cell, 30, extra_steps=extra_steps, lipschitz=True, probe=probe)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        output = layer(x)
        output.penalty.backward()
        optimizer.step()
    residual = output.residual.mean()
    assert residual < 0.1 if settles else residual > 1


@pytest.mark.parametrize("solver, seen", [("steps", True), ("anderson", False)])
def test_E10_secant_does_not_see_that_a_fixed_point_repels_to_which_a_solver_jumped(solver, seen):
    output = RecurrentLayer(GainCell(), 30, solver=solver, lipschitz=True, probe="secant")(GainCell.input([3.0, 3.0]))
    assert (output.penalty > 4) == seen and (output.residual > 1).all() == seen


def test_samples_that_act_on_each_other_are_solved_as_one():
    """A cotangent on one image alone reaches the weights through its neighbours too."""
    torch.manual_seed(0)
    cell, x = HGRUCell(3, 3).double(), random((3, 3, 6, 6))
    assert cell.batch_statistics
    cell.kappa.data.mul_(0.5)
    found = {}
    for name, options in {"bptt": {"gradient": "bptt"}, "solve": {"adjoint": "solve", "neumann_terms": 60}}.items():
        layer = RecurrentLayer(cell, 1000, **options)
        loss = (layer(x).hidden[0] * random((3, 6, 6), seed=1)).sum()
        found[name] = torch.cat([g.flatten() for g in gradients(loss, layer).values()])
    assert relative_error(found["solve"], found["bptt"]) < 1e-5


def test_unconverged_share_is_judged_by_the_tolerance_in_force():
    x = random((8, 6))
    layer = RecurrentLayer(TanhCell(radius=0.9), 6, test_steps=4, test_tolerance=0.3).eval()
    residual = layer(x).residual
    assert ((residual <= 0.3) & (residual > 0.01)).any()
    assert layer.diagnostics["unconverged_share"] == (residual > 0.3).double().mean()
    layer.test_tolerance = 0.0
    residual = layer(x).residual
    assert layer.diagnostics["unconverged_share"] == (residual > 0.01).double().mean()


@pytest.mark.parametrize("method", METHODS)
def test_compiled_models_have_the_gradients_of_eager_ones(method):
    """The penalty's second derivatives are computed outside the compiled part."""
    torch.manual_seed(0)
    torch.compiler.reset()
    layer = RecurrentLayer(ConvCell(), 4, fast="off", **METHODS[method])
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1))
    x = torch.rand(2, 4, 5, 5)

    def loss(x):
        output = layer(model(x))
        return output.hidden.square().sum() + 10 * output.penalty

    wanted = gradients(loss(x), torch.nn.ModuleList([layer, model]))
    found = gradients(torch.compile(loss, backend="aot_eager")(x), torch.nn.ModuleList([layer, model]))
    assert_close(found, wanted, 1e-5)


@pytest.mark.parametrize("gradient", ["bptt", "rbp"])
def test_compiled_cells_can_have_the_secant_penalty(gradient):
    torch.compiler.reset()
    cell, x = ConvCell(), torch.rand(2, 4, 5, 5)

    def found(cell):
        layer = RecurrentLayer(cell, 4, gradient=gradient, lipschitz=True, coefficient=0.0, probe="secant")
        output = layer(x)
        return gradients(output.hidden.square().sum() + 10 * output.penalty, cell)

    wanted = found(cell)
    assert_close(dict(zip(wanted, found(torch.compile(cell, backend="aot_eager")).values())), wanted, 1e-5)


@pytest.mark.parametrize("compiles", ["cell", "layer"])
def test_a_drawn_number_of_steps_is_compiled_anew_with_the_layer_and_not_with_the_cell(compiles):
    torch.compiler.reset()
    made, x = [], torch.rand(2, 4, 5, 5)

    def backend(graph, _):
        made.append(graph)
        return graph.forward

    def compiled(module, wanted):
        return torch.compile(module, backend=backend) if compiles == wanted else module

    layer = RecurrentLayer(compiled(ConvCell(), "cell"), 4, extra_steps=4, lipschitz=True, probe="secant")
    run, counts = compiled(layer, "layer"), []
    for layer.steps_seed in range(6):
        output = run(x)
        (output.hidden.sum() + output.penalty).backward()
        counts.append(len(made))
    assert (counts[-1] > counts[0]) == (compiles == "layer")


def test_test_steps_follow_training_steps_set_later_unless_they_were_set():
    x = random((4, 6))
    layer, apart = RecurrentLayer(TanhCell(), 3).eval(), RecurrentLayer(TanhCell(), 3, test_steps=7).eval()
    layer.steps = apart.steps = 5
    assert (layer(x).steps == 5).all() and (apart(x).steps == 7).all()
    layer.test_steps, apart.test_steps = 2, None
    assert (layer(x).steps == 2).all() and (apart(x).steps == 5).all()


class Watched(ConvCell):
    """Notes of each step whether a compiler looked on."""

    def __init__(self):
        super().__init__()
        self.compiled = []

    def forward(self, x, h):
        self.compiled.append(torch.compiler.is_compiling())
        return super().forward(x, h)


@pytest.mark.parametrize("method", ["bptt", "rbp", "c-bptt", "secant"])
def test_steps_are_compiled_but_those_whose_jacobian_is_asked_for(method):
    """PyTorch's default compiler gives away what a step saved for its first product with the Jacobian."""
    torch.compiler.reset()
    layer = RecurrentLayer(Watched(), 4, fast="off", **METHODS[method])
    torch.compile(layer, backend="eager", fullgraph=method == "bptt")(torch.rand(2, 4, 5, 5))
    asked = {"bptt": 0, "secant": 2}.get(method, 1)
    steps = layer.cell.compiled
    assert all(steps[:3]) and not any(steps[len(steps) - asked :])


@pytest.mark.parametrize("gradient", ["bptt", "tbptt", "rbp"])
def test_evaluation_compiles_into_one_graph(gradient):
    torch.compiler.reset()
    layer, x = RecurrentLayer(ConvCell(), 4, gradient=gradient).eval(), torch.rand(2, 4, 5, 5)
    with torch.no_grad():
        found, wanted = torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x)
    for name in wanted._fields:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))


@pytest.mark.parametrize("gradient, steps", [("rbp", 5), ("tbptt", 5), ("bptt", 5), ("bptt", 20)])
def test_secant_penalty_of_a_linear_cell_has_its_true_derivative(gradient, steps):
    """Of h ← w h + x the quotient is w, whatever steps came before."""
    cell = LinearCell(size=1)
    cell.weight.data.fill_(1.05)
    x = torch.ones(1, 1, dtype=torch.float64)
    layer = RecurrentLayer(cell, steps, gradient=gradient, lipschitz=True, coefficient=0.5, probe="secant")
    (derivative,) = torch.autograd.grad(layer(x).penalty, cell.weight)
    assert derivative.item() == pytest.approx(2 * (1.05 - 0.5), rel=1e-9)


@pytest.mark.parametrize("lipschitz", [False, True])
@pytest.mark.parametrize("gradient", ["bptt", "tbptt"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_learned_initial_state_has_a_gradient_with_a_penalty_too(gradient, steps, lipschitz):
    class Learned(RecurrentLayer):
        def initial_state(self, x):
            return super().initial_state(x) + self.start

    torch.manual_seed(0)
    layer = Learned(HGRUCell(3, 3), steps, gradient=gradient, lipschitz=lipschitz, coefficient=0.0)
    layer.start = torch.nn.Parameter(torch.full((1, 3, 1, 1), 0.1))
    output = layer(torch.rand(2, 3, 5, 5))
    (output.hidden.square().mean() + output.penalty).backward()
    assert layer.start.grad.norm() > 0


@pytest.mark.parametrize("probe", ["ones", "secant"])
@pytest.mark.parametrize("gradient", ["bptt", "tbptt"])
@pytest.mark.parametrize("learned", [False, True])
def test_an_initial_state_that_is_a_leaf_has_its_gradient_from_fast_forms_too(learned, gradient, probe):
    class Started(RecurrentLayer):
        def initial_state(self, x):
            return start if learned else x

    torch.manual_seed(0)
    cell, start, x = HGRUCell(4, 11), torch.rand(2, 4, 12, 12, requires_grad=True), torch.rand(2, 4, 12, 12, requires_grad=True)
    gradients = []
    for fast in ("auto", "off"):
        output = Started(cell, 1, gradient=gradient, lipschitz=True, coefficient=0.0, probe=probe, fast=fast)(x)
        gradients.append(torch.autograd.grad(output.hidden.square().sum() + output.penalty, start if learned else x)[0])
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


def test_secant_penalty_holds_an_initial_state_that_is_learned():
    class Learned(RecurrentLayer):
        def initial_state(self, x):
            return self.start

    cell = LinearCell(size=2)
    layer = Learned(cell, 1, gradient="bptt", lipschitz=True, coefficient=0.0, probe="secant")
    layer.start = torch.nn.Parameter(torch.ones(1, 2, dtype=torch.float64))
    layer(torch.ones(1, 2, dtype=torch.float64)).penalty.backward()
    assert layer.start.grad is None and cell.weight.grad.norm() > 0


@pytest.mark.parametrize("learned", [False, True])
def test_a_start_is_neither_linearised_at_nor_marked_itself(learned):
    """With a single step, rbp asks for the Jacobian at the start."""

    class Started(RecurrentLayer):
        def initial_state(self, x):
            return 2 * self.start if learned else self.start

    cell = LinearCell(size=2)
    layer = Started(cell, 1)
    layer.start = torch.ones(1, 2, dtype=torch.float64, requires_grad=learned)
    layer(torch.ones(1, 2, dtype=torch.float64)).hidden.sum().backward()
    assert layer.start.grad is None and layer.start.requires_grad == learned and cell.weight.grad.norm() > 0


def test_the_residual_of_an_unfinished_search_is_that_of_the_recorded_step():
    torch.manual_seed(0)
    cell, states = HGRUCell(4, 3, norm_start=1.0), []
    layer = RecurrentLayer(cell, 4, solver="anderson")
    cell.register_forward_hook(lambda module, inputs, new: states.append((inputs[1].detach(), new.detach())))
    output = layer(torch.randn(6, 4, 6, 6) * torch.tensor([0.1, 0.3, 1, 3, 10, 30]).view(6, 1, 1, 1))
    torch.testing.assert_close(output.residual, relative_residual(states[-1][1], states[-1][0]))
    assert (output.residual > 1e-2).any()


@pytest.mark.parametrize("overridden", ["initial_state", "step"])
def test_graphs_serve_no_layer_that_starts_or_steps_in_its_own_way(monkeypatch, overridden):
    asked = []
    monkeypatch.setattr("rfpn.layers.recurrent.graphs.run", lambda layer, x, steps: asked.append(type(layer)))
    same = getattr(RecurrentLayer, overridden)
    own = type("Own", (RecurrentLayer,), {overridden: lambda self, *tensors: same(self, *tensors)})
    with torch.no_grad():
        for kind in (RecurrentLayer, own):
            kind(HGRUCell(3, 3), 3)(torch.rand(2, 3, 5, 5))
    assert set(asked) == {RecurrentLayer}
