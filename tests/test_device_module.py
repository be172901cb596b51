"""``torch.remote_accelerator`` after torch.cuda's public list (SPEC L1): it works, refuses in one line, or says why."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.patch import device_module
from mindtorch.patch.cuda_names import cuda_is_ours

LAZY = "remote_accelerator:0"
module: Any = torch.remote_accelerator  # type: ignore[attr-defined]
# How the functions that need arguments are called.
ARGUMENTS: dict[str, tuple] = {
    "device": (0,),
    "device_of": (torch.ones(2, device=LAZY),),
    "set_device": (0,),
    "can_device_access_peer": (0, 0),
    "manual_seed": (1,),
    "manual_seed_all": (1,),
    "set_sync_debug_mode": (0,),
    "set_stream": (None,),
    "stream": (None,),
    "StreamContext": (None,),
}


@pytest.mark.parametrize("name", sorted(torch.cuda.__all__))
def test_L1_every_public_name_of_torch_cuda(name: str) -> None:
    if name in device_module.NOT_APPLICABLE:
        assert not hasattr(module, name)
    elif name == "set_rng_state":
        module.set_rng_state(module.get_rng_state(), LAZY)
    elif name == "set_rng_state_all":
        module.set_rng_state_all(module.get_rng_state_all())
    elif name in device_module.REFUSED and not name.startswith("reset_"):
        with pytest.raises(mindtorch.UnsupportedOperationError, match=rf"^\[torch.remote_accelerator.{name}\] .*$"):
            getattr(module, name)()
    else:
        getattr(module, name)(*ARGUMENTS.get(name, ()))


def test_L1_a_program_for_torch_cuda_with_another_name() -> None:
    with module.device(1):
        assert module.current_device() == 1 and module.current_stream().device == torch.device("remote_accelerator:1")
    module.set_device("remote_accelerator:0")
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    x = torch.ones(8, device=LAZY) * 2
    assert not module.current_stream().query()
    with module.stream(module.Stream()):
        y = x + 1
    end.record()
    end.synchronize()
    assert y.materialized and start.elapsed_time(end) >= 0 and module.current_stream().query()
    free, total = module.mem_get_info()
    assert 0 < free <= total == module.get_device_properties().total_memory
    module.empty_cache()
    module.reset_peak_memory_stats()


def test_L7_states_of_all_generators() -> None:
    torch.manual_seed(3)
    first = torch.rand(3, device="remote_accelerator:1").tolist()
    torch.manual_seed(3)
    states = module.get_rng_state_all()
    assert len(states) >= 2 and module.initial_seed() == 3
    torch.rand(3, device="remote_accelerator:1").tolist()
    module.set_rng_state_all(states)
    assert torch.rand(3, device="remote_accelerator:1").tolist() == first


def test_L1_streams_capture_nothing() -> None:
    assert module.current_stream().is_capturing() is False
    stream = module.Stream()
    assert (stream.stream_id, stream.device_index, stream.device_type) == (
        0,
        0,
        int(torch.autograd.DeviceType.PrivateUse1),
    )


def test_L1_context_managers_are_classes_that_do_what_torchs_do() -> None:
    """torch.compile asks whether a value is a `torch.cuda.StreamContext`, which `--map cuda` has be this module's."""
    stream, context = module.Stream(), module.stream(module.Stream())
    assert isinstance(context, module.StreamContext) and isinstance(module.device(0), module.device)
    assert issubclass(module.device_of, module.device)
    with module.stream(stream) as given, module.stream(None):
        assert given is None
    with stream as given:
        assert given is stream
    with pytest.raises(KeyError), module.device(1):
        assert module.current_device() == 1
        for same in (module.device(None), module.device(-1), module.device_of(torch.ones(2))):
            with same:
                assert module.current_device() == 1
        with module.device_of(torch.ones(2, device=LAZY)):
            assert module.current_device() == 0
        raise KeyError
    assert module.current_device() == 0


@pytest.mark.parametrize("name", sorted(n for n in torch.cuda.__all__ if inspect.isclass(getattr(torch.cuda, n))))
def test_C9_what_cuda_is_mapped_to_has_classes_where_torch_has(name: str) -> None:
    with cuda_is_ours():
        assert inspect.isclass(getattr(torch.cuda, name))
