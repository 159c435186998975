import math
import time

import pytest
import torch

from rfpn.analysis.benchmark import Job, _errors, alternate, compare, mask_head, measure, pathfinder
from rfpn.layers import HGRUCell

CPU = torch.device("cpu")


def _job(**options):
    return Job("small", (2, 3, 6, 6), lambda: HGRUCell(3, 3), "plain fp32", {"steps": 3, **options})


def test_measure_reports_the_median_of_the_timed_runs():
    runs = []
    assert measure(lambda: runs.append(0), CPU, 2, warmup=2).milliseconds >= 0
    assert len(runs) == 4


def test_runs_take_turns():
    runs = []
    times = alternate([lambda: runs.append("a"), lambda: (runs.append("b"), time.sleep(0.01))], CPU, 2)
    assert runs == ["a", "b"] * 2 and times[0] < 10 <= times[1]


def test_rows_refer_to_the_baseline_and_to_the_reference_gradient():
    rows = {row.form: row for row in compare(_job(gradient="bptt"), CPU, 1, peers=True)}
    assert rows["plain fp32"].ratio == 1 and rows["plain fp32"].error == 0
    # the same gradients by another way
    assert rows["checkpointed bptt fp32"].error < 1e-5
    assert 0 < rows["plain bf16"].error < 0.1
    assert math.isclose(rows["plain bf16"].ratio, rows["plain bf16"].milliseconds / rows["plain fp32"].milliseconds)


def test_errors_are_relative_over_all_gradients_and_of_the_worst():
    reference = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[0.0, 4.0]]), "none": torch.zeros(2)}
    gradient = {"a": torch.tensor([3.0, 1.5]), "b": torch.tensor([[0.0, 6.0]]), "none": torch.zeros(2)}
    assert _errors(gradient, reference) == pytest.approx((2.5 / 5, 2 / 4))
    assert all(math.isnan(error) for error in _errors({"a": gradient["a"]}, reference))


@pytest.mark.parametrize("kernel_size, served", [(11, True), (3, False)])
def test_a_cpu_has_a_row_of_the_fast_form_where_there_is_one(kernel_size, served):
    job = Job("small", (2, 3, 12, 12), lambda: HGRUCell(3, kernel_size), "plain fp32", {"steps": 2, "gradient": "bptt"})
    rows = {row.form: row for row in compare(job, CPU, 1)}
    assert ("fast fp32" in rows) == served
    assert not served or 0 < rows["fast fp32"].error < 1e-4


@pytest.mark.parametrize("steps, terms", [(1, 5), (4, 5), (4, 0)])
def test_torchdeq_does_the_same_work(steps, terms):
    pytest.importorskip("torchdeq")
    job = _job(gradient="rbp", neumann_terms=terms, steps=steps)
    rows = {row.form: row for row in compare(job, CPU, 1, peers=True)}
    assert rows["torchdeq fp32"].error < 1e-5 and rows["torchdeq bf16"].error < 0.1


def test_flags_are_as_before():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    list(compare(_job(), CPU, 1))
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark) == before


def test_jobs_have_the_published_sizes():
    assert pathfinder("crbp").size == (32, 25, 150, 150)
    assert mask_head("rbp").size == (1024, 256, 14, 14)
    assert mask_head("rbp").options == {"steps": 20, "gradient": "rbp", "neumann_terms": 15, "lipschitz": False}
    with pytest.raises(ValueError, match="method must be"):
        pathfinder("lcp")
