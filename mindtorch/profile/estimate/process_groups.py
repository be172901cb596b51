"""torch.distributed for an estimated rank: process groups that communicate with nobody (SPEC C4).

Groups are torch's own, with its ``fake`` backend, under the names of those that the program asks for; the ranks are
where torchrun would have put them (`clusters`). What is done with groups is `exchanged`.
"""

from __future__ import annotations

import concurrent.futures
import copy
import datetime
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ..._ext import ledger
from ..._ext.standin import holders
from ...base.clusters import Cluster, started_by_torchrun
from ...base.errors import UnsupportedOperationError
from ...base.patching import Patch, existing, replaced
from ...devices import mode
from ...devices.lazy_device import place_of
from . import data_parallel, exchanged, other_ranks, saved_objects, sharded, sync_batch_norm
from .exchanged import functional
from .sharded import create

__all__ = ["create", "functional", "grouped", "one_alone", "one_of_many"]

_c10d: Any = dist.distributed_c10d
_SHORT = datetime.timedelta(seconds=2)  # what another rank would put into a store comes never
_NCCL = (2, 27, 5)  # that of torch's own builds for CUDA
_cluster = Cluster(1)
_grouped = False
#: The package has a function of the module's name.
_SPAWNERS = (torch.multiprocessing, importlib.import_module("torch.multiprocessing.spawn"))


@contextmanager
def one_alone() -> Iterator[None]:
    """Within the block the program is a process on its own: of a process group that it makes, it is the only rank."""

    @functools.wraps(_init)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        given = inspect.signature(_init).bind(*args, **kwargs).arguments
        if (size := _asked_size(given)) != 1:
            if size is not None and "ccl" in str(given.get("backend")):
                raise UnsupportedOperationError(
                    f"[init_process_group] expected one process, got a group of {size}: "
                    f"--target {size}x<accelerator> is for programs of several ranks"
                )
            return _init(*args, **kwargs)
        stack.enter_context(mode.enter(ranks=sys.modules[__name__]))
        stack.enter_context(one_of_many(Cluster(1), environment=False))
        return _init_process_group(*args, **kwargs)

    def spawn(start: Any) -> Any:
        @functools.wraps(start)
        def spawned(fn: Any, args: tuple = (), nprocs: int = 1, join: bool = True, *more: Any, **kwargs: Any) -> Any:
            if nprocs == 1:
                return _spawn(fn, args, nprocs, join)
            return start(fn, args, nprocs, join, *more, **kwargs)

        return spawned

    with ExitStack() as stack:
        own = {"init_process_group": init_process_group, "is_nccl_available": _is_nccl_available}
        told = [(owner, "spawn", spawn(torch.multiprocessing.spawn)) for owner in _SPAWNERS]
        stack.enter_context(replaced([*_wherever(own), *told]))
        yield


def _asked_size(given: dict[str, Any]) -> int | None:
    """How many ranks the program says that there are; None where torch has to say what is missing."""
    size = int(given.get("world_size", -1))
    if given.get("store") is not None:
        return size
    method = given.get("init_method") or "env://"
    asked = dict(part.partition("=")[::2] for part in method.partition("?")[2].split("&"))
    size = int(asked.get("world_size", size))
    if method.startswith("env://"):
        needed = {"MASTER_ADDR", "MASTER_PORT", *(["WORLD_SIZE"] if size < 0 else []),
                  *(["RANK"] if int(asked.get("rank", given.get("rank", -1))) < 0 else [])}  # fmt: skip
        if not needed <= set(os.environ):
            return None
        size = int(os.environ["WORLD_SIZE"]) if size < 0 else size
    return size if size > 0 else None


@contextmanager
def one_of_many(cluster: Cluster, environment: bool = True) -> Iterator[None]:
    """Within the block the program is a rank of the cluster, as torchrun starts it. Belongs into an estimate.

    environment: whether it finds the variables that torchrun sets.
    """
    global _cluster, _grouped
    import torch.testing._internal.distributed.fake_pg  # noqa: F401  # which tells torch of the backend

    _cluster, _grouped = cluster, False
    exchanged.begin()
    hook = sys.excepthook
    with ExitStack() as stack:
        if environment:
            stack.enter_context(started_by_torchrun(cluster))
        stack.enter_context(sharded.classes_forgotten())
        parts = (exchanged, data_parallel, sharded, sync_batch_norm)
        stack.enter_context(replaced([*patches(), *(p for each in parts for p in each.patches())]))
        stack.callback(setattr, sys, "excepthook", hook)
        stack.callback(_leave)
        yield


def grouped() -> bool:
    """Has the program made a process group? Else it is one process, for which all accelerators of a machine are."""
    return _grouped


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _wherever(own: dict[str, Any]) -> list[Patch]:
    """The same for whoever has torch's function by name: torch's modules, and those of libraries loaded by now."""
    return holders({getattr(_c10d, name): instead for name, instead in own.items()}, (__name__,))


def patches() -> Iterator[Patch]:
    yield from _wherever({name: globals()[f"_{name}"] for name in _OWN if hasattr(_c10d, name)})
    yield _c10d, "_new_process_group_helper", _new_process_group_helper
    yield torch.cuda, "is_initialized", _is_initialized
    # Torch without NCCL would warn that it has none.
    yield from existing(_c10d, {"default_pg_nccl_timeout": datetime.timedelta(minutes=10)})
    yield torch.cuda.nccl, "version", lambda: _NCCL
    yield torch.cuda.nccl, "is_available", lambda tensors: True
    fsdp = importlib.import_module("torch.distributed.fsdp._init_utils")
    yield from existing(fsdp, {"_get_compute_device": _compute_device})
    stage: Any = importlib.import_module("torch.distributed.pipelining.stage").PipelineStage
    if hasattr(stage, "_recv_meta"):
        _pipeline()
        yield stage, "_recv_meta", _receive_meta
    for where in _CHECKPOINTS:
        yield from existing(importlib.import_module(where), _OF_CHECKPOINTS)
    for owner in _SPAWNERS:
        yield owner, "spawn", _spawn
        yield owner, "start_processes", _start_processes


# ---- groups ----------------------------------------------------------------------------------------------------------
_init = _c10d.init_process_group
_new_helper = _c10d._new_process_group_helper


@functools.wraps(_init)
def _init_process_group(backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1,
                        rank: int = -1, store: Any = None, group_name: str = "", pg_options: Any = None,
                        device_id: Any = None, **kwargs: Any) -> None:  # fmt: skip
    global _grouped
    size = world_size if world_size > 0 else _cluster.size
    place = rank if rank >= 0 else _cluster.rank
    if store is None:
        store = dist.HashStore()
        store.set_timeout(_SHORT)
    if backend is None and device_id is not None:
        kind = mode.now.accelerator if isinstance(device_id, int) else torch.device(device_id).type
        backend = dist.Backend.default_device_backend_map.get(kind)
    _grouped = True
    _init(backend, None, timeout or _c10d.default_pg_timeout, size, place, store, group_name, None, None, **kwargs)


@functools.wraps(_new_helper)
def _new_process_group_helper(group_size: Any, group_rank: Any, ranks: Any, backend: Any, store: Any, group_name: Any,
                              backend_options: Any = None, timeout: Any = None, pg_tag: Any = None,
                              device_id: Any = None, group_desc: Any = None, **_: Any) -> Any:  # fmt: skip
    group, prefix = _new_helper(group_size, group_rank, ranks, "fake", store, group_name, timeout=timeout,
                                pg_tag=pg_tag, group_desc=group_desc)  # fmt: skip
    if prefix is not None:
        if str(backend) == "nccl":
            exchanged.of_nccl_alone.add(group.group_name)
        said = "cpu:gloo,cuda:nccl" if str(backend) in ("undefined", "None") else str(backend)
        name = "nccl" if "nccl" in said else said
        _c10d._world.pg_map[group] = (dist.Backend(name), prefix)
    return group, prefix


def _rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[Any]:
    store = dist.HashStore()
    store.set_timeout(_SHORT)
    size = world_size if world_size > 0 else _cluster.size
    yield store, rank if rank >= 0 else _cluster.rank, size


def _is_initialized() -> bool:
    """Has the program used its device? A mesh of devices chooses one for programs that have not."""
    chosen: int = mode.now.current_cuda()
    return chosen != 0 or ledger.live_bytes(place_of(f"{mode.now.accelerator}:0"))[1] > 0


def _compute_device(module: Any, ignored: Any, device: Any, rank: int, handle: Any) -> Any:
    """FSDP's: `torch.device` of an index alone is C++'s accelerator, which there is not."""
    return device or torch.device(mode.now.accelerator, mode.now.current_cuda())


def _is_nccl_available() -> bool:
    return True


def _is_torchelastic_launched() -> bool:
    return True


# ---- objects: others have what this rank has -------------------------------------------------------------------------
def _size(group: Any) -> int:
    return dist.get_world_size(group)


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None, **_: Any) -> None:
    exchanged.begun("all_gather", 0, exchanged.ranks_of(group or dist.group.WORLD), False)
    object_list[: _size(group)] = [copy.deepcopy(obj) for _ in range(_size(group))]


def _gather_object(
    obj: Any, object_gather_list: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None, **_: Any
) -> None:
    if object_gather_list is not None:
        _all_gather_object(object_gather_list, obj, group)


def _broadcast_object_list(object_list: list[Any], src: Any = None, group: Any = None, *args: Any, **kw: Any) -> None:
    exchanged.begun("broadcast", 0, exchanged.ranks_of(group or dist.group.WORLD), False)


def _scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: Any = None, src: Any = None, group: Any = None,
    group_src: Any = None, **_: Any,
) -> None:  # fmt: skip
    given = scatter_object_input_list
    scatter_object_output_list[0] = given[dist.get_rank(group)] if given else None


def _peer(global_rank: int | None, group: Any, in_group: int | None) -> int:
    if global_rank is None:
        return exchanged.ranks_of(group or dist.group.WORLD)[in_group or 0]
    return global_rank


def _send_object_list(object_list: Any, dst: Any = None, group: Any = None, device: Any = None, group_dst: Any = None,
                      use_batch: bool = False, **_: Any) -> None:  # fmt: skip
    other_ranks.sent(dist.get_rank(), _peer(dst, group, group_dst), object_list)


def _recv_object_list(object_list: Any, src: Any = None, group: Any = None, device: Any = None, group_src: Any = None,
                      use_batch: bool = False, **_: Any) -> int:  # fmt: skip
    source = _peer(src, group, group_src)
    found = other_ranks.received(source, dist.get_rank())
    if found is not other_ranks.MISSING:
        object_list[:] = found
    return source


def _receive_meta(self: Any, stage: int) -> Any:
    """Of a pipeline's stage, what its neighbour says of the tensors between them. Gradients are as activations are."""
    if stage > self.stage_index:
        utils: Any = importlib.import_module("torch.distributed.pipelining._utils")
        return utils._StageBackwardMeta(backward_metas=utils._derive_grad_metas(self._stage_meta.outputs))
    return _pipeline()._recv_meta(self, stage)


@functools.cache
def _pipeline() -> Any:
    """torch's class of stages, with its own methods."""
    stage: Any = importlib.import_module("torch.distributed.pipelining.stage").PipelineStage
    return type("Own", (), dict(vars(stage)))


def _monitored_barrier(group: Any = None, *args: Any, **kwargs: Any) -> None:
    dist.barrier(group)


_OWN = ("init_process_group", "rendezvous", "is_nccl_available", "is_torchelastic_launched", "all_gather_object",
        "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list",
        "monitored_barrier")  # fmt: skip


# ---- checkpoints: none is written, and what is read is what is there -------------------------------------------------
def _save(state_dict: Any, *, checkpoint_id: Any = None, **options: Any) -> Any:
    for value in state_dict.values():
        if hasattr(value, "state_dict"):
            value.state_dict()
    if checkpoint_id is not None:
        os.makedirs(checkpoint_id, exist_ok=True)
        saved_objects.remember(os.path.join(checkpoint_id, ".metadata"), None)
    return dist.checkpoint.metadata.Metadata(state_dict_metadata={})


def _async_save(state_dict: Any, **options: Any) -> Any:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_result(_save(state_dict, checkpoint_id=options.get("checkpoint_id")))
    return future


def _load(state_dict: Any, **options: Any) -> None:
    for value in state_dict.values():
        if hasattr(value, "load_state_dict"):
            value.load_state_dict(value.state_dict())


_CHECKPOINTS = ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver",
                "torch.distributed.checkpoint.state_dict_loader")  # fmt: skip
_OF_CHECKPOINTS = {"save": _save, "async_save": _async_save, "load": _load}


# ---- programs that start their ranks themselves ----------------------------------------------------------------------
def _spawn(fn: Any, args: tuple = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
           start_method: str = "spawn") -> Any:  # fmt: skip
    """Of the processes of one machine, the one that is asked for runs here."""
    fn(_cluster.local_rank if nprocs > _cluster.local_rank else 0, *args)
    return None if join else _Ended()


def _start_processes(fn: Any, args: tuple = (), nprocs: int = 1, join: bool = True, *more: Any, **kwargs: Any) -> Any:
    return _spawn(fn, args, nprocs, join)


class _Ended:
    """What stands for processes that are joined later."""

    def join(self, timeout: Any = None, grace_period: Any = None) -> bool:
        return True

    def pids(self) -> list[int]:
        return []
