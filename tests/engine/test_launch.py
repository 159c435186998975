"""Where a process stands in a job that torchrun or SLURM started."""

from types import SimpleNamespace

import pytest
import torch

from rfpn.engine.launch import Place, check_gpus, find_place


def test_no_launcher():
    assert find_place({}) is None
    assert find_place({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) is None


def test_torchrun():
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a"}
    assert find_place(environment) == Place(5, 8, 1, 4, "env://")


def test_slurm():
    environment = {
        "SLURM_NTASKS": "8", "SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_NNODES": "2",
        "SLURM_NODELIST": "node1,node2", "SLURM_JOB_ID": "1234",
    }  # fmt: skip
    assert find_place(environment) == Place(6, 8, 2, 4, "tcp://node1:21234")


def test_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="--num-gpus 2 but this machine has 0"):
        check_gpus(SimpleNamespace(num_gpus=2, num_machines=1))
    check_gpus(SimpleNamespace(num_gpus=1, num_machines=1))
