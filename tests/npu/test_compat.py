"""N3, N6: programs for torch_npu where the real one is absent: its public names work, or refuse in one line."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch_npu_names import NAMES

import mindtorch
from mindtorch.npu.refused import REFUSED

# How the functions that need arguments are called.
ARGUMENTS: dict[str, tuple] = {
    "StreamContext": (None,), "caching_allocator_alloc": (64,), "can_device_access_peer": (0, 0), "device": (0,),
    "device_of": (torch.ones(2),), "manual_seed": (1,), "manual_seed_all": (1,), "set_aoe": ("/nowhere",),
    "set_autocast_dtype": (torch.bfloat16,), "set_autocast_enabled": (False,), "set_device": (0,),
    "set_option": ({"ACL_PRECISION_MODE": "must_keep_origin_dtype"},), "set_per_process_memory_fraction": (1.0,),
    "set_stream": (None,), "set_sync_debug_mode": (0,), "stream": (None,), "use_compatible_impl": (True,),
}  # fmt: skip
NOT_CALLED = {"config", "matmul", "conv", "CubeMathType", "mstx", "caching_allocator_delete"}


@pytest.mark.parametrize("name", NAMES["torch_npu.npu"])
def test_N3_every_public_name_of_torch_npu_npu(npu: ModuleType, name: str) -> None:
    value: Any = getattr(npu, name)
    if name in REFUSED:
        with pytest.raises(mindtorch.UnsupportedOperationError, match=rf"^\[torch.npu.{name}\] [^\n]{{10,}}$"):
            value()
    elif name == "set_rng_state":
        value(npu.get_rng_state())
    elif name == "set_rng_state_all":
        value(npu.get_rng_state_all())
    elif name == "caching_allocator_alloc":
        npu.caching_allocator_delete(value(64))
    elif name == "use_compatible_impl":
        value(False)
    elif name not in NOT_CALLED:
        value(*ARGUMENTS.get(name, ()))


def last(npu: ModuleType) -> str:
    """The device with the highest index: another than npu:0 wherever there are several."""
    return f"npu:{npu.device_count() - 1}"


def test_N3_what_names_without_arguments_give(npu: ModuleType) -> None:
    index = npu.device_count() - 1
    npu.set_device(index)
    try:
        held = torch.ones(1000, device="npu")
        used = npu.memory_allocated()
        assert used >= 4000 and npu.max_memory_allocated() >= used and npu.memory_reserved() >= used
        assert npu.memory_allocated(index) == used
        assert npu.current_device() == held.get_device() == npu.current_stream().device_index == index
        assert npu.is_available() and npu.is_initialized() and npu.get_device_name()
        free, total = npu.mem_get_info()
        assert 0 < free < total == npu.get_device_properties().total_memory
        stream = npu.Stream()
        with npu.stream(stream):
            assert npu.current_stream() == stream != npu.default_stream()
        npu.manual_seed(7)
        assert npu.initial_seed() == 7
        state = npu.get_rng_state()
        first = torch.rand(3, device="npu")
        npu.set_rng_state(state)
        assert torch.equal(first.cpu(), torch.rand(3, device="npu").cpu())
        peak = npu.max_memory_allocated()
        del held
        npu.reset_peak_memory_stats()
        assert npu.max_memory_allocated() < peak
        assert npu.get_amp_supported_dtype()[0] is torch.float16
    finally:
        npu.set_device(0)


def test_N3_names_that_torch_npu_does_not_have(npu: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no attribute 'npu_no_such_thing'"):
        npu.npu_no_such_thing
    assert set(REFUSED) - set(NAMES["torch_npu.npu"]) == set()
    assert set(NAMES["torch_npu.npu"]) <= {*dir(npu), *REFUSED}


def test_N3_settings_are_remembered(npu: ModuleType) -> None:
    npu.set_compile_mode(jit_compile=True)
    assert not npu.is_jit_compile_false()
    npu.set_compile_mode()
    assert npu.is_jit_compile_false() and npu.get_mm_bmm_format_nd()
    npu.set_option({"MM_BMM_ND_ENABLE": "disable"})
    assert not npu.get_mm_bmm_format_nd()
    npu.set_mm_bmm_format_nd(True)
    npu.config.allow_internal_format = False
    npu.matmul.allow_hf32 = True
    assert npu.matmul.allow_hf32 and npu.matmul.cube_math_type == npu.CubeMathType.KEEP_DTYPE
    npu.matmul.allow_hf32 = False
    with pytest.raises(TypeError, match="expected a dict of options, got str"):
        npu.set_option("ACL_PRECISION_MODE")
    with pytest.raises(
        ValueError, match=r"ACL_PRECISION_MODE: expected one of allow_fp32_to_fp16, must_keep_.*, got '5'"
    ):
        npu.set_option({"ACL_PRECISION_MODE": 5})
    with pytest.raises(mindtorch.UnsupportedOperationError, match="expected 0"):
        npu.set_sync_debug_mode("warn")
    for mode, known in ((-1, "0,1,2"), (3, "0,1,2"), ("never", "`default`, `warn`, `error`")):
        with pytest.raises(RuntimeError, match=f"^invalid value of debug_mode, expected one of {known}, got {mode!r}$"):
            npu.set_sync_debug_mode(mode)


def test_N3_what_torch_npu_answers_of_devices(npu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = npu.get_device_properties(0)
    names = "major minor warp_size gcnArchName is_integrated is_multi_gpu_board max_threads_per_multi_processor"
    assert all(getattr(properties, name) is None for name in (*names.split(), "regs_per_multiprocessor"))
    for said, answer in (("9.0", (9, 0)), ("8.10", (8, 10)), ("8.a", None), ("8", None), ("", None)):
        monkeypatch.setenv("TORCH_NPU_DEVICE_CAPABILITY", said)
        assert npu.get_device_capability() == npu.get_device_capability(0) == answer
        assert npu.get_device_capability(properties.name) == npu.get_device_capability(npu.device(0)) == answer
    with pytest.raises(AssertionError, match="Invalid device id"):
        npu.can_device_access_peer(-1, 0)
    with pytest.raises(AssertionError, match="Invalid peer device id"):
        npu.can_device_access_peer(0, npu.device_count())


def test_N3_memory_by_share_and_by_address(npu: ModuleType) -> None:
    held = torch.ones(1000, device="npu:0")
    stats = npu.memory_stats_as_nested_dict()
    assert stats["allocated_bytes"]["all"]["current"] == npu.memory_allocated() == npu.memory.memory_allocated() > 0
    assert npu.memory_cached() == npu.memory_reserved()
    theirs = inspect.getsource(torch.cuda.memory_summary)
    whole, short = npu.memory_summary(0), npu.memory_summary(0, abbreviated=True)
    assert {len(line) for line in whole.splitlines()} == {77} and short.splitlines()[:6] == whole.splitlines()[:6]
    assert "PyTorch NPU memory summary, device ID 0 " in whole and " NPU OOMs: " in whole
    assert whole.splitlines()[5][1:-1] in theirs and "Active memory" in whole and "Active memory" not in short
    assert f"| Allocated memory      | {npu.memory_allocated(0):6} B   |" in short
    address = npu.caching_allocator_alloc(1 << 20)
    assert npu.memory_allocated() >= stats["allocated_bytes"]["all"]["current"] + (1 << 20)
    npu.caching_allocator_delete(address)
    with pytest.raises(ValueError, match="expected an address from caching_allocator_alloc"):
        npu.caching_allocator_delete(address)
    total = npu.mem_get_info()[1]
    try:
        npu.empty_cache()
        npu.set_per_process_memory_fraction(0.25)
        assert npu.get_per_process_memory_fraction() == 0.25
        fits = torch.empty(total // 8, dtype=torch.uint8, device="npu:0")
        with pytest.raises(torch.OutOfMemoryError, match=r"this process may hold 256\.00 MiB"):
            torch.empty(total // 2, dtype=torch.uint8, device="npu:0")
        del fits
    finally:
        npu.set_per_process_memory_fraction(1.0)
    torch.empty(total // 2, dtype=torch.uint8, device="npu:0")
    npu.empty_cache()
    assert held.sum().item() == 1000
    for wrong, kind in (("1", TypeError), (1, TypeError), (1.5, ValueError), (-0.1, ValueError)):
        with pytest.raises(kind, match=r"Invalid (type for fraction argument|fraction value)"):
            npu.set_per_process_memory_fraction(wrong)


def test_N3_the_index_of_a_device_as_libraries_ask_for_it(npu: ModuleType, devices: Any) -> None:
    devices(2)
    ask = npu._get_device_index
    assert [ask(each) for each in (1, "npu:1", mindtorch.device("npu:1"))] == [1, 1, 1]
    with npu.device(1):
        assert [ask(each, optional=True) for each in (None, "npu", mindtorch.device("npu"), 0)] == [1, 1, 1, 0]
        for each in (None, "npu", mindtorch.device("npu")):
            with pytest.raises(ValueError, match="with a specified index or an integer"):
                ask(each)
    assert ask("cpu", allow_cpu=True) == ask(torch.device("cpu"), allow_cpu=True) == -1
    with pytest.raises(ValueError, match="Expected a npu device"):
        ask(torch.device("cpu"), optional=True)
    with pytest.raises(RuntimeError, match="device string"):
        ask("npu0", optional=True)


def test_N3_types_of_tensors(npu: ModuleType) -> None:
    made = npu.FloatTensor([1.0, 2.0])
    assert made.device.type == "npu" and made.dtype is torch.float32 and made.tolist() == [1.0, 2.0]
    assert isinstance(made, npu.FloatTensor) and not isinstance(made, npu.HalfTensor)
    assert not isinstance(torch.ones(2), npu.FloatTensor) and npu.LongTensor(2, 3).shape == (2, 3)
    assert made.type() == "torch.npu.FloatTensor" and made.type(torch.float16).type() == "torch.npu.HalfTensor"
    assert made.type("torch.npu.IntTensor").type() == "torch.npu.IntTensor"
    assert made.type(npu.LongTensor).dtype is torch.int64
    assert made.type("torch.FloatTensor").device.type == "cpu" and made.type(torch.DoubleTensor).dtype is torch.float64


def test_N3_storages_are_bytes_that_can_be_copied(npu: ModuleType) -> None:
    t = torch.tensor([1, 2, 3], dtype=torch.int32, device="npu:0")
    plain = torch.tensor([1, 2, 3], dtype=torch.int32).untyped_storage()
    storage = t.untyped_storage()
    assert storage.tolist() == storage.cpu().tolist() == plain.tolist() == storage.clone().tolist()
    assert storage.get_device() == 0 and storage.is_npu and not storage.is_cuda and not storage.is_pinned()
    other = torch.zeros(3, dtype=torch.int32, device=last(npu)).untyped_storage()
    assert other.copy_(storage).tolist() == plain.tolist() and storage.fill_(0).tolist() == [0] * 12
    assert t.tolist() == [0, 0, 0] and storage.copy_(plain) is storage and t.tolist() == [1, 2, 3]
    seen = torch.empty(0, dtype=torch.int32, device="npu:0").set_(storage, 1, (2,), (1,))
    assert seen.tolist() == [2, 3] and seen.untyped_storage() == storage
    seen.fill_(7)
    assert t.tolist() == [1, 7, 7] and t.new_empty(0).set_(storage).tolist() == [1, 7, 7]
    fresh = torch.empty(8, dtype=torch.uint8, device=last(npu)).untyped_storage()
    with pytest.raises(RuntimeError, match="expected a storage of 12 bytes, got one of 8"):
        storage.copy_(fresh)


def test_N3_a_storage_of_another_device_is_refused(npu: ModuleType, devices: Callable[[int], None]) -> None:
    devices(2)
    with pytest.raises(RuntimeError, match="expected a storage on npu:1, got one on npu:0"):
        torch.empty(0, device="npu:1").set_(torch.ones(3, device="npu:0").untyped_storage())


@pytest.mark.parametrize("device", ["cpu", "npu:0"])
def test_L7_files_of_the_older_format_are_loaded_with_their_contents(npu: ModuleType, device: str) -> None:
    whole = torch.arange(6.0, device=device)
    file = io.BytesIO()
    torch.save({"whole": whole, "part": whole[2:4], "bits": whole > 2}, file, _use_new_zipfile_serialization=False)
    for place in (last(npu), {"cpu": last(npu)}, torch.nn.Linear(1, 1).to(last(npu)).weight.device):
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        assert {t.device.type for t in loaded.values()} == {"npu"} and loaded["part"].tolist() == [2.0, 3.0]
        assert loaded["whole"].tolist() == whole.tolist() and loaded["bits"].tolist() == (whole > 2).tolist()
        assert loaded["part"].untyped_storage() == loaded["whole"].untyped_storage()


def test_N3_autocast_on_npus_is_to_float16_unless_said_otherwise(npu: ModuleType) -> None:
    x, w = torch.ones(2, 4, device="npu"), torch.ones(4, 4, device="npu")
    with torch.autocast("npu"):
        assert (x @ w).dtype is torch.float16
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert (x @ w).dtype is torch.bfloat16
    with torch.autocast("cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16


def test_N3_mixed_precision_by_its_own_names(npu: ModuleType) -> None:
    model = torch.nn.Linear(4, 4).npu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = npu.amp.GradScaler(init_scale=8.0)
    with npu.amp.autocast():
        out = model(torch.ones(2, 4, device="npu"))
        assert out.dtype is torch.float16 and npu.is_autocast_enabled()
    before = model.weight.detach().cpu().clone()
    scaler.scale(out.float().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 8.0 and not torch.equal(before, model.weight.detach().cpu())
    assert torch.float16 in npu.get_amp_supported_dtype()


def test_L7_generators_on_npus(npu: ModuleType) -> None:
    device = last(npu)
    generator = torch.Generator(device=device)
    assert isinstance(generator, torch.Generator) and str(generator.device) == device
    plain = torch.Generator().manual_seed(5)
    generator.manual_seed(5)
    drawn = torch.randn(4, generator=generator, device=device)
    assert torch.equal(drawn.cpu(), torch.randn(4, generator=plain))
    filled = torch.empty(4, device=device).normal_(generator=generator)
    assert torch.equal(filled.cpu(), torch.empty(4).normal_(generator=plain))
    assert torch.equal(generator.get_state(), plain.get_state())
    for draw in (lambda: torch.rand(2, generator=generator), lambda: torch.empty(2).normal_(generator=generator)):
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'npu'"):
            draw()


def test_D5_streams_are_found_again_by_their_numbers(npu: ModuleType) -> None:
    for stream in (npu.Stream(), npu.Stream(priority=-1), npu.default_stream()):
        again = npu.Stream(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        )  # fmt: skip
        assert again == stream and again.npu_stream == stream.npu_stream
    for wrong in ((99999, 0, 20), (0, 999, 20), (0, 0, 999), (0, -1, 20), (-1, 0, 20), (0, 0, -1), (0, None, None)):
        with pytest.raises(RuntimeError):
            npu.Stream(**dict(zip(("stream_id", "device_index", "device_type"), wrong, strict=True)))


# ---- in processes of their own: torch knows npu for good -------------------------------------------------------------
def test_N3_programs_that_import_torch_npu(in_npu_program: Callable[..., str]) -> None:
    names = {module: names for module, names in NAMES.items() if module != "torch_npu.npu"}
    code = f"""
        import importlib, importlib.util, re, sys
        assert importlib.util.find_spec("torch_npu") is None
        import torch, mindtorch
        mindtorch.enable()
        try:
            import torch_npu
        except ModuleNotFoundError as error:
            assert error.name == "torch_npu"
        import mindtorch.npu.compat
        import torch_npu, torch_npu.npu, torch_npu.npu.amp, torch_npu.profiler
        from torch_npu.npu.amp import autocast
        from torch_npu.npu import amp
        from mindtorch.npu.finder import NAMES
        for name in NAMES:
            parent, _, last = name.rpartition(".")
            if parent and last != "transfer_to_npu":
                assert hasattr(sys.modules[parent], last), name
                assert importlib.import_module(name) is getattr(sys.modules[parent], last), name
        assert not torch.cuda.is_available()  # transfer_to_npu was not imported
        try:
            torch_npu.profiler.profile(nonsense=3)
        except TypeError as error:
            assert re.match(r"\\[profile\\] expected options among .*with_stack, got nonsense$", str(error)), error
        else:
            raise AssertionError("taken")
        with torch_npu.profiler.profile(use_cuda=False, with_flops=True, record_shapes=True) as profile:
            torch.ones(2, 2) @ torch.ones(2, 2)
        assert any(event.flops for event in profile.key_averages())
        assert torch_npu.npu is torch.npu is sys.modules["torch.npu"] and torch_npu.npu.amp.autocast is autocast
        assert importlib.util.find_spec("torch_npu")
        assert torch_npu.__version__ == torch.__version__.partition("+")[0] + "+mindtorch"
        from mindtorch import UnsupportedOperationError
        refused = 0
        for module, names in {names!r}.items():
            for name in names:
                value = getattr(importlib.import_module(module), name)
                if getattr(value, "__doc__", None) and value.__module__ == module.replace("torch_npu.npu", "torch.npu"):
                    try:
                        value()
                    except UnsupportedOperationError as error:
                        assert re.match(rf"\\[{{value.__module__}}.{{name}}\\] .{{{{10,}}}}$", str(error)), error
                        refused += 1
        print(refused)
        d = torch.device("npu:1")
        x = torch.ones(3, device=d)
        assert isinstance(x.device, torch.device) and x.device == d and x.to(torch.device("npu")).device.index == 0
        assert isinstance(torch.npu.Stream("npu:1").device, torch.device)
        assert torch.device(1) == d and torch.ones(2).to(0).device == torch.device("npu:0")
        assert torch.ones(2).type(torch.npu.HalfTensor).type() == "torch.npu.HalfTensor" == x.half().type()
        assert torch.ones(2).type("torch.npu.IntTensor").is_npu and torch.ones(2).type() == "torch.FloatTensor"
        storage = torch.UntypedStorage(8, device="npu:1")
        assert storage.fill_(1).tolist() == [1] * 8 and storage.device.index == 1
        acc = torch.accelerator
        assert acc.is_available() and acc.current_accelerator().type == "npu" and acc.device_count() == 2
        acc.set_device_index(1)
        assert torch.npu.current_device() == acc.current_device_index() == 1 and torch.ones(1).npu().device == d
        assert acc.memory_allocated() == torch.npu.memory_allocated() > 0 and acc.current_stream().device == d
        with torch.device("npu:0"):
            assert torch.ones(2).device.index == 0
        with torch.npu.device(0):
            assert torch.npu.current_device() == 0
        acc.synchronize()
        y = torch.ones(2, device="remote_accelerator:0") + 1   # has no name in torch, and goes on
        assert y.tolist() == [2.0, 2.0]
        try:
            torch.distributed.init_process_group("hccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        except UnsupportedOperationError as error:
            assert "got hccl: Ascend's library of collective operations (libhccl.so) is not supported" in str(error)
        assert not torch.distributed.is_hccl_available()
    """
    assert int(in_npu_program(code)) > 60


def test_N3_transfer_to_npu(in_npu_program: Callable[..., str]) -> None:
    code = """
        import torch, mindtorch
        mindtorch.enable()
        import mindtorch.npu.compat, torch_npu
        from torch_npu.contrib import transfer_to_npu
        assert torch.cuda.is_available() and torch.cuda.device_count() == 2
        torch.cuda.set_device(0)
        x = torch.randn(4, 8, device="cuda")
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
        t = torch.ones(2).cuda()
        devices = [x, model(x), t, torch.ones(2).to(torch.device("cuda:1")), torch.ones(2).to("cuda", torch.float16),
                   torch.tensor([1], device=torch.device("cuda")), x.new_ones(2, device="cuda:1"), t.cuda(1),
                   torch.zeros_like(torch.ones(2), device="cuda"), model.to("cuda:0")[0].weight]
        print([str(d.device) for d in devices])
        assert all(d.is_cuda for d in devices) and not torch.ones(2).is_cuda
        with torch.autocast("cuda", dtype=torch.float16):
            assert model(x).dtype is torch.float16
        scaler = torch.cuda.amp.GradScaler()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            y = x + 1
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() > 0 and torch.cuda.max_memory_allocated() > 0
        torch.cuda.manual_seed_all(3)
        import io
        file = io.BytesIO(); torch.save(model.state_dict(), file); file.seek(0)
        assert torch.load(file, map_location="cuda")["0.weight"].is_cuda
        assert torch.Generator("cuda").device.type == "npu"
        with torch.device("cuda"):
            assert torch.ones(2).is_cuda
        try:
            torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        except mindtorch.UnsupportedOperationError as error:
            assert "got hccl" in str(error)
    """
    zero, one = "npu:0", "npu:1"
    assert eval(in_npu_program(code)) == [zero, zero, zero, one, zero, zero, one, one, zero, zero]


def test_N6_where_torch_npu_is_the_real_one_is_taken(
    acl_path: Path, tmp_path: Path, after_torch: Callable[..., Any]
) -> None:
    (tmp_path / "torch_npu.py").write_text("import torch\ntorch.utils.rename_privateuse1_backend('npu')\nreal = True\n")
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch, mindtorch.npu.compat, torch_npu
        print(torch_npu.real, torch_npu.__file__)
    """
    done = after_torch(code, GENIE_ACL_LIBRARY=str(acl_path))
    assert done.stdout.split() == ["True", str(tmp_path / "torch_npu.py")]


def test_N3_a_slot_that_is_taken_is_said(after_a_step: Callable[..., Any]) -> None:
    code = """
        import torch, mindtorch
        torch.device("remote_accelerator:0")
        try:
            import mindtorch.npu.compat
        except mindtorch.UnsupportedOperationError as error:
            print(error)
    """
    assert "got 'remote_accelerator' in it: import mindtorch.npu.compat before" in after_a_step(code).stdout


def test_N3_what_compiled_programs_import_of_torch_npu(in_npu_program: Callable[..., str]) -> None:
    assert in_npu_program("""
        import torch, mindtorch.npu.compat, torch_npu, torch_npu._inductor
        from torch_npu._C import _empty_strided_npu, _npu_getCurrentRawStream, _npu_getDeviceCount
        x = _empty_strided_npu((2, 3), (1, 4), torch.float16)
        print(x.shape == (2, 3), x.stride(), x.dtype, x.device, x.untyped_storage().nbytes())
        with torch.npu.stream(torch.npu.Stream(1)) as s:
            print(_npu_getCurrentRawStream(1) == torch.npu.current_stream(1).npu_stream, _npu_getDeviceCount())
        y = torch_npu.empty_with_format((2, 2), acl_format=29, dtype=torch.int8)
        print(y.shape == (2, 2), y.device, int(torch_npu.get_npu_format(y)), torch_npu.get_storage_size(x.t()))
        try:
            torch_npu.empty_with_format((2, 2), acl_format=77)
        except ValueError as error:
            print(error)
    """).splitlines() == ["True (1, 4) torch.float16 npu:0 20", "True 2", "True npu:0 2 10", "77 is not a valid Format"]


def test_N3_storages_are_moved_to_npus(in_npu_program: Callable[..., str]) -> None:
    assert in_npu_program("""
        import torch, mindtorch.npu.compat
        plain = torch.tensor([1, 2, 3], dtype=torch.int32)
        for storage in (plain.untyped_storage(), plain.storage()):
            moved = storage.npu()
            moved.fill_(1), storage.npu(1).fill_(2), storage.npu("npu:1", non_blocking=True)
            print(moved.device, storage.npu("npu:1").device, moved.tolist()[:4], storage.npu().nbytes(), plain.tolist())
            print(moved.npu(0) is moved, moved.npu(1).device, moved.npu(1).cpu().tolist()[-1], moved.npu(1).dtype
                  if storage.element_size() > 1 else "of bytes")
    """).splitlines() == [
        "npu:0 npu:1 [1, 1, 1, 1] 12 [1, 2, 3]",
        "True npu:1 1 of bytes",
        "npu:0 npu:1 [1, 1, 1] 12 [1, 2, 3]",
        "True npu:1 1 torch.int32",
    ]


def test_N3_the_version_of_cann_is_what_its_installation_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_a_step: Callable[..., Any]
) -> None:
    (tmp_path / "x86_64-linux").mkdir()
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert after_a_step("""
        import os, pathlib
        from mindtorch.npu.compat.utils import get_cann_version
        print(get_cann_version())
        written = pathlib.Path(os.environ["ASCEND_HOME_PATH"], "x86_64-linux", "ascend_toolkit_install.info")
        written.write_text("package_name=Ascend\\nversion = 8.5.0\\n")
        print(get_cann_version())
        del os.environ["ASCEND_HOME_PATH"]
        print(get_cann_version())
    """).stdout.splitlines() == ["not known", "8.5.0", "not known"]


@pytest.mark.parametrize("first", ["", "torch.ones(1, device='remote_accelerator')"], ids=["free", "taken"])
def test_N6_torch_npu_is_not_found_where_torch_knows_another_device(after_torch, first):
    """Transformers imports it where it finds it, and none of its models could be imported."""
    code = f"""
        import importlib.util
        import torch, mindtorch
        from mindtorch.npu import finder
        {first or "pass"}
        finder.watch(lambda: True, probes=True)
        found = importlib.util.find_spec("torch_npu") is not None
        try:
            import torch_npu
        except ModuleNotFoundError:
            print(found, "not found")
        else:
            print(found, torch_npu.__name__)
    """
    expected = "False not found" if first else "True mindtorch.npu.compat.top"
    assert after_torch(code).stdout.strip() == expected
