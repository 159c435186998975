"""Where a process stands in a job that torchrun or SLURM started."""

import multiprocessing
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing import ProcessExitedException

from rfpn.engine import launch as module
from rfpn.engine.launch import Place, check_gpus, find_place, launch


def test_no_launcher():
    assert find_place({}) is None
    assert find_place({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) is None


def test_torchrun():
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a"}
    assert find_place(environment) == Place(5, 8, 1, 4, "env://")


SRUN = {
    "SLURM_NTASKS": "9", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "node1,node2", "SLURM_PROCID": "6", "SLURM_LOCALID": "2",
    "SLURM_NODELIST": "node0,node1,node2", "SLURM_JOB_ID": "1234",
}  # fmt: skip


def test_slurm():
    assert find_place(SRUN) == Place(6, 8, 2, 4, "tcp://node1:21234")
    assert find_place({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "8"}).local_size == 8


def test_a_batch_script_without_srun_is_one_process():
    assert find_place({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODELIST": "node1"}) is None


def test_unequal_numbers_of_processes_on_the_machines_are_refused():
    with pytest.raises(ValueError, match=r"srun starts 4\(x2\),3 processes .* --ntasks-per-node"):
        find_place({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"})


def arguments(num_gpus=1, num_machines=1, machine_rank=0):
    return SimpleNamespace(num_gpus=num_gpus, num_machines=num_machines, machine_rank=machine_rank)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"num_gpus": 0, "num_machines": 2}, "for CPU processes use torchrun"),
        ({"num_gpus": -1}, "--num-gpus -1 must be 0 or more"),
        ({"num_machines": 0}, "--num-machines 0"),
        ({"machine_rank": 1}, "--machine-rank 1 one of --num-machines 1"),
    ],
)
def test_places_that_there_are_not(monkeypatch, given, words):
    """Each machine would train a model of its own, without a word."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match=words):
        check_gpus(arguments(**given))


def test_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="--num-gpus 2 but this machine has 0"):
        check_gpus(arguments(num_gpus=2))
    check_gpus(arguments())


def test_more_processes_than_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for local_rank, fails in ((3, False), (4, True)):
        monkeypatch.setattr(module, "find_place", lambda _: Place(local_rank, 8, local_rank, 8, "env://"))
        with pytest.raises(ValueError, match="8 processes were started.*4 GPUs") if fails else nullcontext():
            check_gpus(arguments())


@pytest.mark.parametrize("code, expected", [(2, SystemExit), (3, SystemExit), (-9, ProcessExitedException)])
def test_the_exit_code_of_a_spawned_process_is_the_programs(monkeypatch, code, expected):
    def spawn(*_, **__):
        raise ProcessExitedException("process 1 ended", error_index=1, error_pid=2, exit_code=code)

    monkeypatch.setattr(module, "find_place", lambda _: None)
    monkeypatch.setattr(module, "spawn", spawn)
    with pytest.raises(expected) as end:
        launch(None, SimpleNamespace(num_gpus=2, num_machines=1, machine_rank=0, dist_url="auto"))
    assert (end.value.code if expected is SystemExit else end.value.exit_code) == code


def write_start_method(args):
    args.path.write_text(multiprocessing.get_start_method())


def call(_, main, arguments):
    main(*arguments)


def test_workers_of_spawned_processes_start_as_those_of_others(monkeypatch, tmp_path):
    """Spawned ones import everything again: a loader with 8 of them took a minute to start."""

    def spawn(main, gpus, machines, rank, url, arguments, timeout):
        torch.multiprocessing.spawn(call, (main, arguments), nprocs=1)

    monkeypatch.setattr(module, "find_place", lambda _: None)
    monkeypatch.setattr(module, "spawn", spawn)
    path = tmp_path / "method"
    launch(write_start_method, SimpleNamespace(path=path, num_gpus=2, num_machines=1, machine_rank=0, dist_url="auto"))
    assert path.read_text() == multiprocessing.get_start_method()


@pytest.mark.parametrize("backend, error, ends", [("nccl", True, 0), ("nccl", False, 1), ("gloo", True, 1), ("gloo", False, 1)])
def test_a_process_that_failed_does_not_wait_for_the_others(monkeypatch, backend, error, ends):
    def main(_):
        if error:
            raise RuntimeError("on purpose")

    ended = []
    monkeypatch.setattr(module, "find_place", lambda _: Place(1, 2, 1, 2, "env://"))
    monkeypatch.setattr(module, "_join", lambda _: None)
    monkeypatch.setattr(module, "_GLOO_ENDS", 0)
    monkeypatch.setattr(module.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(module.dist, "destroy_process_group", lambda: ended.append(True))
    with pytest.raises(RuntimeError, match="on purpose") if error else nullcontext():
        launch(main, None)
    assert len(ended) == ends
