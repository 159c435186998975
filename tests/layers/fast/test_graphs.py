"""CUDA graphs of steps without gradient: when one serves, and which one. What they compute: test_graphs_cuda."""

import copy

import pytest
import torch

from rfpn.fixed_point import relative_residual
from rfpn.layers import RecurrentLayer
from rfpn.layers.fast import graphs
from tests.layers.fast.fast_problems import OnCard, gala, hgru

CHANNELS, STEPS = 64, 6


class Recorder:
    """In place of a captured graph: the pool it was given."""

    def __init__(self, pool, number):
        self.given, self.number, self.graph = pool, number, self

    def pool(self):
        return f"pool of {self.number}"


def _drive(rois):
    torch.manual_seed(1)
    return torch.randn(rois, CHANNELS, 14, 14)


def _layer(**options):
    return RecurrentLayer(gala(CHANNELS), STEPS, **options).eval()


@pytest.mark.parametrize(
    "rois, wanted",
    [(0, None), (1, 20), (20, 20), (21, 40), (100, 100), (101, 128), (129, 192), (449, 512), (512, 512), (513, None)],
)
def test_buckets(rois, wanted):
    assert graphs.bucket(rois) == wanted


def test_buckets_of_one_shape_all_have_room():
    assert len({graphs.bucket(rois) for rois in range(1, graphs.MOST_ROIS + 1)}) <= graphs.MOST_GRAPHS


def test_key_tells_apart_what_a_graph_fixes(monkeypatch):
    x = _drive(5)
    keys = {graphs._key(x, 20), graphs._key(x, 19), graphs._key(_drive(21), 20), graphs._key(x.double(), 20)}
    keys.add(graphs._key(x[..., 1:], 20))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "is_autocast_enabled", lambda kind: True)
        keys.add(graphs._key(x, 20))
    for tf32 in (torch.backends.cudnn, torch.backends.cuda.matmul):
        before = tf32.allow_tf32
        tf32.allow_tf32 = not before
        keys.add(graphs._key(x, 20))
        tf32.allow_tf32 = before
    assert len(keys) == 8


def test_key_is_that_of_the_bucket_in_any_memory_format():
    x = _drive(5)
    assert graphs._key(x, 20) == graphs._key(_drive(16), 20) == graphs._key(x.to(memory_format=torch.channels_last), 20)


def test_placement_changes_with_replaced_weights_and_not_with_values():
    cell = gala()
    before = graphs.placement(cell)
    cell.load_state_dict({name: value + 1 for name, value in cell.state_dict().items()})
    assert graphs.placement(cell) == before
    cell.alpha = torch.nn.Parameter(cell.alpha.detach().clone())
    assert graphs.placement(cell) != before
    assert graphs.placement(copy.deepcopy(cell)) != before


def _find(cache, key, weights=("here",), made=None):
    made = [] if made is None else made
    return cache.find(key, weights, lambda pool: made.append(key) or Recorder(pool, key))


def test_graphs_are_captured_once_and_share_a_living_graphs_pool():
    cache, made = graphs.CellGraphs(), []
    first, second = _find(cache, 1, made=made), _find(cache, 2, made=made)
    assert _find(cache, 1, made=made) is first and made == [1, 2]
    assert first.given is None and second.given == "pool of 1"


def test_least_recently_used_graph_is_dropped():
    cache = graphs.CellGraphs()
    for key in range(graphs.MOST_GRAPHS):
        _find(cache, key)
    _find(cache, 0)
    _find(cache, "new")
    assert len(cache.graphs) == graphs.MOST_GRAPHS and 0 in cache.graphs and 1 not in cache.graphs


def test_replaced_weights_drop_all_graphs_and_their_pool():
    cache = graphs.CellGraphs()
    _find(cache, 1)
    assert _find(cache, 2, ("there",)).given is None
    assert list(cache.graphs) == [2]


def test_weights_that_keep_moving_end_graphs_of_the_cell(caplog):
    cache, made = graphs.CellGraphs(), []
    found = [_find(cache, 1, (place,), made) for place in range(graphs.MOST_MOVES + 5)]
    assert all(found[: graphs.MOST_MOVES]) and not any(found[graphs.MOST_MOVES :])
    assert len(made) == graphs.MOST_MOVES and not cache.graphs
    assert len(caplog.records) == 1 and "one by one from now on" in caplog.text


def test_a_drive_without_fast_form_is_remembered():
    cache, made = graphs.CellGraphs(), []
    for _ in range(2):
        assert cache.find(1, (), lambda pool: made.append(pool)) is None
    assert made == [None] and _find(cache, 2).given is None


def test_failed_capture_warns_once_and_ends_graphs_of_the_cell(caplog):
    def fail(pool):
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    cache = graphs.CellGraphs()
    _find(cache, 1)
    assert [cache.find(2, ("here",), fail) for _ in range(2)] == [None, None]
    assert _find(cache, 1) is None and not cache.graphs
    assert len(caplog.records) == 1 and caplog.messages[0].endswith("one by one: operation not permitted")


def test_usable_without_grad_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    x, layer = _drive(3).as_subclass(OnCard), _layer()
    assert not graphs.usable(layer, x)
    with torch.no_grad():
        assert graphs.usable(layer, x)
        assert not graphs.usable(layer, _drive(3))
        assert not graphs.usable(layer, x[:0]) and not graphs.usable(layer, x[0])
        assert not graphs.usable(layer, x[:1].expand(513, -1, -1, -1))
        assert graphs.usable(layer.train(), x)
        assert not graphs.usable(_layer(fast="off"), x)
        assert not graphs.usable(RecurrentLayer(hgru(), 2).eval(), x)
        assert not graphs.usable(_layer(extra_steps=3).train(), x) and graphs.usable(_layer(extra_steps=3), x)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not graphs.usable(layer, x)


@pytest.mark.parametrize("options, asks", [
    ({"gradient": "rbp", "lipschitz": True}, [STEPS - 1]),
    ({"gradient": "tbptt", "window": 2}, [STEPS - 2]),
    ({"gradient": "bptt"}, []),
])
def test_training_takes_the_steps_before_the_recorded_ones_from_a_graph(options, asks, monkeypatch):
    x, layer = _drive(2), _layer(**options).train()
    wanted, asked = layer(x), []
    with torch.no_grad():
        states = [hidden for hidden, _ in layer.unroll(x, STEPS)]

    def run(layer, x, steps):
        if torch.is_grad_enabled():
            return None
        asked.append(steps)
        return states[steps - 1], None

    monkeypatch.setattr(graphs, "run", run)
    found = layer(x)
    assert asked == asks
    for name in found._fields:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))
    assert found.hidden.requires_grad


def test_layer_returns_the_states_of_a_graph(monkeypatch):
    x, layer = _drive(2), _layer()
    with torch.no_grad():
        wanted = layer(x)
        *_, (previous, _), (last, _) = layer.unroll(x, STEPS)
        asked = []
        monkeypatch.setattr(graphs, "run", lambda *args: asked.append(args[2]) or (last, relative_residual(last, previous)))
        found = layer(x)
    assert asked == [STEPS]
    for name in found._fields:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))


def test_solvers_and_tolerances_never_ask_for_a_graph(monkeypatch):
    monkeypatch.setattr(graphs, "run", lambda *_: pytest.fail("asked for a graph"))
    with torch.no_grad():
        _layer(test_tolerance=1e-2)(_drive(2))
        _layer(solver="anderson")(_drive(2))


def test_nothing_is_captured_on_a_cpu(monkeypatch):
    monkeypatch.setattr(graphs, "_capture", lambda *_: pytest.fail("captured"))
    layer = _layer()
    with torch.no_grad():
        layer(_drive(2))
    assert layer.cell not in graphs._graphs
