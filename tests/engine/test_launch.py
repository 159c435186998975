"""Where a process stands in a job that torchrun or SLURM started."""

import contextlib
import logging
import multiprocessing
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


def test_a_launcher_that_does_not_tell_the_number_of_processes_on_a_machine():
    environment = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}
    assert find_place(environment) == Place(1, 4, 1, 4, "env://")
    with pytest.raises(ValueError, match="RANK 3 is not LOCAL_RANK 1, .*: set LOCAL_WORLD_SIZE to"):
        find_place({**environment, "RANK": "3"})


SRUN = {
    "SLURM_NTASKS": "9", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "node1,node2", "SLURM_PROCID": "6", "SLURM_LOCALID": "2",
    "SLURM_NODELIST": "node0,node1,node2", "SLURM_JOB_ID": "1234",
}  # fmt: skip


def test_slurm():
    assert find_place(SRUN) == Place(6, 8, 2, 4, "tcp://node1:24634")
    assert find_place({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "8"}).local_size == 8
    assert find_place({**SRUN, "MASTER_PORT": "1234"}).url == "tcp://node1:1234"


def test_steps_of_one_job_and_jobs_that_follow_each_other_do_not_meet():
    jobs = [{"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for job in (77, 78) for step in range(50)]
    assert len({find_place({**SRUN, **job}).url for job in jobs}) == 100


def test_where_slurm_does_not_tell_the_first_machine_the_remedy_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"scontrol does not name the first machine of node\[1-2\]: set MASTER_ADDR"):
        find_place({**SRUN, "SLURM_STEP_NODELIST": "node[1-2]"})


def test_a_batch_script_without_srun_is_one_process():
    assert find_place({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODELIST": "node1"}) is None


def test_unequal_numbers_of_processes_on_the_machines_are_refused():
    with pytest.raises(ValueError, match=r"srun starts 4\(x2\),3 processes .* --ntasks-per-node"):
        find_place({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"})


def arguments(num_gpus=1, num_machines=1, machine_rank=0, opts=()):
    place = {"num_gpus": num_gpus, "num_machines": num_machines, "machine_rank": machine_rank}
    return SimpleNamespace(**place, config_file="", opts=list(opts))


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
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=words):
        check_gpus(arguments(**given))


def test_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="--num-gpus 2 but this machine has 0"):
        check_gpus(arguments(num_gpus=2))
    check_gpus(arguments())


def test_more_processes_than_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for local_rank, fails in ((3, False), (4, True)):
        monkeypatch.setattr(module, "find_place", lambda _: Place(local_rank, 8, local_rank, 8, "env://"))
        with pytest.raises(ValueError, match="8 processes were started.*4 GPUs") if fails else contextlib.nullcontext():
            check_gpus(arguments())
        check_gpus(arguments(opts=["MODEL.DEVICE", "cpu"]))


@pytest.mark.parametrize("given, said", [({"num_gpus": 8}, True), ({"num_machines": 2}, True), ({}, False)])
def test_arguments_that_a_launcher_overrules_are_told_of_once(monkeypatch, caplog, given, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for rank in (0, 1):
        monkeypatch.setattr(module, "find_place", lambda _: Place(rank, 2, rank, 2, "env://"))
        with caplog.at_level(logging.WARNING, logger="rfpn"):
            check_gpus(arguments(**given))
    assert caplog.text.count("do nothing: torchrun or srun has started the 2 processes") == said


@pytest.mark.parametrize(
    "gpus, device, backend", [(0, "cuda", "gloo"), (4, "cuda", "nccl"), (4, "cpu", "gloo"), (1, "cpu", "gloo")]
)
def test_processes_on_the_cpu_talk_through_gloo(monkeypatch, gpus, device, backend):
    """Also where there are GPUs: NCCL has no way for what is on the CPU."""
    taken, made, sizes = [], [], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(module.dist, "init_process_group", lambda *words, **_: made.append(words[0]))
    monkeypatch.setattr(module.dist, "new_group", lambda ranks: None)
    monkeypatch.setattr(module.comm, "_LOCAL_PROCESS_GROUP", None)
    monkeypatch.setattr(module.comm, "create_local_process_group", sizes.append, raising=False)
    monkeypatch.setattr(module.dist, "all_gather_object", lambda found, one: found.__setitem__(slice(None), [one] * 2))
    module._join(Place(1, 2, 1, 2, "env://"), arguments(opts=["MODEL.DEVICE", device]))
    assert made == [backend] and taken == [1] * (backend == "nccl") and sizes == [2]


def _said(monkeypatch, places, steps):
    """What the processes of a job, each in a step of SLURM, say of each other."""
    told = []
    for place, step in zip(places, steps, strict=True):
        monkeypatch.setenv("SLURM_STEP_ID", step)
        told.append(module._told(place))
    for place in places:
        try:
            module._check_others(place, told)
        except ValueError as error:
            yield str(error)
        else:
            yield ""


def test_processes_that_do_not_belong_together_all_end(monkeypatch):
    def places(*ranks, url="tcp://node1:1"):
        return [Place(rank, len(ranks), local, size, url) for rank, (local, size) in enumerate(ranks)]

    assert [*_said(monkeypatch, places((0, 2), (1, 2), (0, 2), (1, 2)), "0000")] == [""] * 4
    assert all("several jobs have met" in error for error in _said(monkeypatch, places((0, 2), (1, 2)), "01"))
    # a torchrun on each machine may be a step of its own
    assert [*_said(monkeypatch, places((0, 1), (0, 1), url="env://"), "01")] == [""] * 2
    for unequal in (places((0, 2), (1, 2), (0, 1)), places((0, 2), (0, 2), (1, 2), (1, 2))):
        said = _said(monkeypatch, unequal, "0" * len(unequal))
        assert all("every machine must have the same number of processes" in error for error in said)


def test_a_job_whose_processes_are_not_told_their_places(monkeypatch):
    """Each would train alone, without a word."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ValueError, match="WORLD_SIZE is 2 without LOCAL_RANK: start the processes with torchrun"):
        check_gpus(arguments())
    monkeypatch.setenv("WORLD_SIZE", "")
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
    monkeypatch.setattr(module, "_join", lambda *_: None)
    monkeypatch.setattr(module, "_GLOO_ENDS", 0)
    monkeypatch.setattr(module.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(module.dist, "destroy_process_group", lambda: ended.append(True))
    with pytest.raises(RuntimeError, match="on purpose") if error else contextlib.nullcontext():
        launch(main, None)
    assert len(ended) == ends
