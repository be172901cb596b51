"""Device meshes of the device: DTensors, FSDP2 and tensor parallelism by torch's usual entries (SPEC L1, L7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch.distributed", reason="this torch is built without it")

#: What two ranks do on the CPU and on the device; each writes what it has found.
PROGRAM = """
import json, sys, torch
import mindtorch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def net(d):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(d)

def trained(model, d, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        x = torch.arange(8.0).view(2, 4).to(d) * 0.01 * (rank + step + 1)
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor().tolist() if hasattr(p, "full_tensor") else p.tolist() for p in model.parameters()]

def seen(d, rank, size):
    mesh = init_device_mesh(d, (size,), mesh_dim_names=("all",))
    assert type(mesh.device_type) is str and mesh.device_type == d == mesh["all"].device_type
    x = distribute_tensor(torch.arange(12.0).view(6, 2).to(d), mesh, [Shard(0)])
    assert x.to_local().device.type == d
    return [
        x.full_tensor().tolist(),
        (x @ x.t()).redistribute(mesh, [Replicate()]).to_local().tolist(),
        trained(fully_shard(net(d), mesh=mesh), d, rank),
        trained(fully_shard(net(d)), d, rank),
        trained(parallelize_module(net(d), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), d, 0),
    ]

def main(rank, size, where):
    dist.init_process_group("gloo", init_method="file://" + where, rank=rank, world_size=size)
    found = [seen(d, rank, size) for d in ("cpu", "remote_accelerator")]
    dist.barrier()
    with open(where + str(rank), "w") as out:
        json.dump(found, out)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.start_processes(main, (2, sys.argv[1]), 2, start_method="fork")
"""


def test_L7_two_ranks_shard_tensors_and_models_as_on_the_cpu(tmp_path: Path, forked: Any) -> None:
    program, store = tmp_path / "program.py", tmp_path / "store"
    program.write_text(PROGRAM)
    done = forked(str(program), str(store))
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(Path(f"{store}{rank}").read_text()) for rank in range(2)]
    for on_the_cpu, on_the_device in ranks:
        assert on_the_device == on_the_cpu
        assert on_the_device[2] == on_the_device[3], "without a mesh, a model is sharded where it is"
        assert on_the_device[0] == [[2.0 * i, 2.0 * i + 1] for i in range(6)]
    assert ranks[0][1][2] == ranks[1][1][2] != ranks[0][1][4]


def test_L1_init_device_mesh_refuses_what_it_refused(after_a_step: Any) -> None:
    code = """
        import inspect, tempfile, torch
        from torch.distributed import device_mesh
        import torch.distributed as dist
        torchs = device_mesh.init_device_mesh
        import mindtorch
        assert inspect.signature(device_mesh.init_device_mesh) == inspect.signature(torchs)
        assert dist.init_device_mesh is device_mesh.init_device_mesh
        import torch.distributed.fsdp as fsdp
        assert hasattr(fsdp.fully_shard, "state") and fsdp.fully_shard.__name__ == "fully_shard"
        dist.init_process_group(init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
        for name in ("remote_accelerator:0", "re_mote", "cuda:1"):
            for call in (torchs, device_mesh.init_device_mesh):
                try:
                    call(name, (1,))
                except RuntimeError as error:
                    assert "Device type with index is not supported" in str(error), error
                else:
                    raise AssertionError(name)
        for entry in (lambda d: device_mesh.init_device_mesh(d, (1,), mesh_dim_names=("a", "b")),):
            for name in ("cpu", "remote_accelerator"):
                try:
                    entry(name)
                except RuntimeError as error:
                    assert "should have same length" in str(error), error
                else:
                    raise AssertionError(name)
        mindtorch.disable()
        assert device_mesh.init_device_mesh is torchs and fsdp.fully_shard.__module__.startswith("torch")
        print(fsdp.fully_shard(torch.nn.Linear(2, 2), mesh=torchs("cpu", (1,)))(torch.ones(1, 2)).shape)
        dist.destroy_process_group()
    """
    assert after_a_step(code).stdout.strip() == "torch.Size([1, 2])"
