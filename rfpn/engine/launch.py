"""One entry for every way a job is started: Detectron2's arguments, torchrun or SLURM."""

import argparse
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from typing import Callable, NamedTuple

import torch
import torch.distributed as dist
from detectron2.engine import default_argument_parser
from detectron2.engine import launch as spawn
from detectron2.engine.launch import DEFAULT_TIMEOUT as TIMEOUT
from detectron2.utils import comm
from torch.multiprocessing import ProcessExitedException

from rfpn.engine.setup import load_cfg

# Seconds for gloo's threads to let go of the last tensors, for which they need Python: with torch 2.6, one that asks for
# it once Python exits aborts the process, and one that asks while its group is being destroyed waits for ever.
_GLOO_ENDS = 0.5


class Place(NamedTuple):
    """Where a process stands in a job whose processes were started from outside.

    rank, world_size: over all machines. local_rank, local_size: on this machine. url: of the rendezvous.
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    url: str


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Detectron2's arguments under a program's own description."""
    parser = default_argument_parser()
    parser.description, parser.epilog = description, None
    overrides = next(action for action in parser._actions if action.dest == "opts")
    overrides.help = "overrides of the configuration, KEY VALUE in pairs, after all other arguments"
    return parser


def launch(main: Callable, args) -> None:
    """Run ``main(args)`` in every process of the job.

    Under torchrun or ``srun`` with several tasks this process is one of them; otherwise ``--num-gpus``,
    ``--num-machines``, ``--machine-rank`` and ``--dist-url`` decide. Processes without a GPU, or with MODEL.DEVICE cpu,
    talk through gloo. Where a process ends with an exit code (it has said why), this one ends with the same.
    """
    place = find_place(os.environ)
    if place is not None:
        _join(place, args)
        try:
            main(args)
        except BaseException:
            # NCCL's end waits for processes that wait for this one; once this process has gone, its launcher ends them
            if dist.get_backend() == "gloo":
                _leave()
            raise
        _leave()
        return
    job = (main, args, multiprocessing.get_start_method())
    try:
        spawn(_spawned, args.num_gpus, args.num_machines, args.machine_rank, args.dist_url, job, timeout=TIMEOUT)
    except ProcessExitedException as error:
        if error.exit_code < 0:  # ended by a signal, so it has said nothing
            raise
        sys.exit(error.exit_code)


def _spawned(main: Callable, args, start_method: str) -> None:
    # a spawned process would spawn its loaders' workers too: a minute for each loader, where forks take a second
    multiprocessing.set_start_method(start_method, force=True)
    main(args)


def check_gpus(args) -> None:
    """Raise ValueError where a job asks for more GPUs than this machine has, or its arguments do not name its processes.

    Processes with MODEL.DEVICE cpu may be more where torchrun or SLURM started them.
    """
    place = find_place(os.environ)
    if place is None:
        _check_arguments(args)
    else:
        _check_started(place, args)


def _check_started(place: Place, args) -> None:
    if place.rank == 0 and (args.num_gpus, args.num_machines) != (1, 1):
        logging.getLogger("rfpn").warning(
            "--num-gpus and --num-machines do nothing: torchrun or srun has started the %d processes", place.world_size
        )
    gpus = torch.cuda.device_count()
    if place.local_rank >= gpus and _on_gpus(args):
        started = f"{place.local_size} processes were started on this machine"
        raise ValueError(f"{started}, but it has {gpus} GPUs: start one for each")


def _check_arguments(args) -> None:
    if not (args.num_gpus >= 0 and 0 <= args.machine_rank < args.num_machines):
        raise ValueError(
            f"--num-gpus {args.num_gpus} must be 0 or more, and --machine-rank {args.machine_rank} one of --num-machines "
            f"{args.num_machines}, counted from 0"
        )
    if args.num_machines > 1 and args.num_gpus == 0:
        remedy = "for CPU processes use torchrun --nnodes"
        raise ValueError(f"--num-machines is for GPUs, of which --num-gpus 0 asks for none; {remedy}")
    gpus = torch.cuda.device_count()
    if args.num_gpus * args.num_machines > 1 and args.num_gpus > gpus:
        raise ValueError(
            f"--num-gpus {args.num_gpus} but this machine has {gpus}; for CPU processes use torchrun --nproc-per-node"
        )
    started = os.environ.get("WORLD_SIZE") or "1"
    if started != "1" and args.num_gpus * args.num_machines <= 1:
        needed = ", ".join(name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR") if name not in os.environ)
        raise ValueError(
            f"WORLD_SIZE is {started} without {needed}: start the processes with torchrun, or give --num-machines, "
            "--machine-rank and --num-gpus; for one process alone unset WORLD_SIZE"
        )


def find_place(environment) -> Place | None:
    """This process's place from torchrun's or srun's variables, or None where neither started it.

    Raises:
        ValueError: srun started unequal numbers of processes on the machines, or the number on this one is not told.
    """
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"} <= environment.keys():
        rank, world_size, local_rank = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        if rank != local_rank and "LOCAL_WORLD_SIZE" not in environment:
            raise ValueError(
                f"RANK {rank} is not LOCAL_RANK {local_rank}, so there are several machines: set LOCAL_WORLD_SIZE to the "
                "number of processes on each"
            )
        local_size = int(environment.get("LOCAL_WORLD_SIZE", world_size))
        return Place(rank, world_size, local_rank, local_size, "env://")
    # SLURM_STEP_*, not SLURM_*: a batch script has the job's variables too, but without srun it is one process
    if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and "SLURM_PROCID" in environment:
        # a port for each step: steps of one job, and jobs with consecutive numbers, may share a machine
        step = 101 * int(environment.get("SLURM_JOB_ID", 0)) + int(environment.get("SLURM_STEP_ID", 0))
        port = int(environment.get("MASTER_PORT", 20000 + step % 20000))
        return Place(
            int(environment["SLURM_PROCID"]),
            int(environment["SLURM_STEP_NUM_TASKS"]),
            int(environment["SLURM_LOCALID"]),
            _tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"]),
            f"tcp://{_first_host(environment)}:{port}",
        )
    return None


def _tasks_per_node(text: str) -> int:
    """SLURM's "4" or, on three machines, "4(x3)". Raises ValueError for one such as "4(x2),3"."""
    if "," in text:
        raise ValueError(f"srun starts {text} processes on the machines; give every machine the same number: --ntasks-per-node")
    return int(text.partition("(")[0])


def _first_host(environment) -> str:
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    nodes = environment["SLURM_STEP_NODELIST"]
    if "[" not in nodes:
        return nodes.split(",")[0]
    try:
        return subprocess.check_output(["scontrol", "show", "hostnames", nodes], text=True).split()[0]
    except (OSError, subprocess.CalledProcessError):
        raise ValueError(f"scontrol does not name the first machine of {nodes}: set MASTER_ADDR to its name") from None


def _told(place: Place) -> tuple:
    """What a process tells the others: its job, how many there are on its machine, whether its rank is in order there."""
    # torchrun may join processes of several SLURM steps, so there the job is not compared
    job = None if place.url == "env://" else tuple(map(os.environ.get, ("SLURM_JOB_ID", "SLURM_STEP_ID")))
    return job, place.local_size, place.rank % place.local_size == place.local_rank


def _check_others(place: Place, everyone: list[tuple]) -> None:
    """Raise ValueError, in all processes, where some are of another job or machines have unequal numbers of them."""
    if len({job for job, _, _ in everyone}) > 1:
        raise ValueError(f"processes of several jobs have met at {place.url}: give each job a MASTER_PORT of its own")
    if len(set(everyone)) > 1 or not everyone[0][-1]:
        raise ValueError(
            "every machine must have the same number of processes, with consecutive ranks (torchrun --nproc-per-node, "
            f"srun --distribution=block); rank {place.rank} is process {place.local_rank} of {place.local_size} on its machine"
        )


def _leave() -> None:
    if dist.get_backend() == "gloo":
        time.sleep(_GLOO_ENDS)
    dist.destroy_process_group()


def _on_gpus(args) -> bool:
    return torch.cuda.is_available() and load_cfg(args.config_file, args.opts).MODEL.DEVICE != "cpu"


def _join(place: Place, args) -> None:
    gpus = _on_gpus(args)
    if gpus:
        torch.cuda.set_device(place.local_rank)
    # not both at once ("cpu:gloo,cuda:nccl"): Detectron2 0.6 gathers objects through one of the two
    backend = "nccl" if gpus else "gloo"
    dist.init_process_group(backend, place.url, timeout=TIMEOUT, world_size=place.world_size, rank=place.rank)
    everyone = [None] * place.world_size
    dist.all_gather_object(everyone, _told(place))
    _check_others(place, everyone)
    if hasattr(comm, "create_local_process_group"):
        comm.create_local_process_group(place.local_size)
        return
    # Detectron2 0.6 sets its local group only in its own launcher
    for first in range(0, place.world_size, place.local_size):
        ranks = list(range(first, first + place.local_size))
        group = dist.new_group(ranks)
        if place.rank in ranks:
            comm._LOCAL_PROCESS_GROUP = group
