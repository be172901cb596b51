"""SPEC D1-D3 and the device half of D5."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.devices.names import DEVICE_TYPES, device, get_default_device, set_default_device
from mindtorch.devices.places import ESTIMATED, META, NPU, RECORDED, TORCHS, where
from mindtorch.patch.cuda_names import cuda_is_ours
from mindtorch.profile.estimate.estimating import estimating


@pytest.fixture(autouse=True)
def _default_back():
    yield
    set_default_device(None)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # in the checkout, "python -c" would import the source folder


def torch_can(text: str) -> bool:
    try:
        torch.device(text)
    except RuntimeError:
        return False
    return True


SPECS = [f"{kind}{tail}" for kind in DEVICE_TYPES for tail in ("", ":0", ":1", ":127")]


@pytest.mark.parametrize("spec", SPECS)
def test_D1_parts_and_text(spec):
    kind, _, tail = spec.partition(":")
    value = device(spec)
    assert value.type == kind
    assert value.index == (int(tail) if tail else None)
    assert str(value) == spec
    assert repr(value) == (f"device(type='{kind}', index={tail})" if tail else f"device(type='{kind}')")
    assert value == device(kind, int(tail) if tail else None) == device(value)
    assert hash(value) == hash(device(kind, value.index))


def test_D1_types_are_the_five():
    assert sorted(DEVICE_TYPES) == ["cpu", "cuda", "meta", "npu", "remote_accelerator"]


@pytest.mark.parametrize("spec", [s for s in SPECS if torch_can(s)])
def test_D1_equal_to_and_hashing_like_torch(spec):
    ours, theirs = device(spec), torch.device(spec)
    assert ours == theirs and theirs == ours
    assert (ours != theirs) is False and (theirs != ours) is False
    assert hash(ours) == hash(theirs)
    assert str(ours) == str(theirs) and repr(ours) == repr(theirs)
    assert {ours: 1}[theirs] == 1 and {theirs: 1}[ours] == 1
    assert device(theirs) is ours
    assert ours.to_torch() == theirs and type(ours.to_torch()) is torch.device


def test_D1_equal_to_torch_in_the_registered_slot(after_torch):
    # torch has one slot for a foreign device and can fill it once per process, hence the fork.
    for name in ("remote_accelerator", "npu"):
        code = f"""
import torch
torch.utils.rename_privateuse1_backend({name!r})
from mindtorch.devices.names import device
for spec in ({name!r}, {name + ":0"!r}, {name + ":3"!r}):
    ours, theirs = device(spec), torch.device(spec)
    assert ours == theirs and theirs == ours and hash(ours) == hash(theirs), spec
    assert ours.to_torch() == theirs and device(theirs) is ours
"""
        after_torch(code)


def test_D1_index_none_differs_from_zero():
    for kind in DEVICE_TYPES:
        assert device(kind) != device(kind, 0)
    assert device("npu") != device("remote_accelerator")
    assert device("cpu") != torch.device("cpu:0")
    assert torch.device("cpu") != device("cpu:0")
    assert device("cpu") != "cpu"


def test_D1_immutable():
    value = device("npu:1")
    for attempt in ("type", "index", "_index", "other"):
        with pytest.raises(AttributeError):
            setattr(value, attempt, 3)
    with pytest.raises(AttributeError):
        del value._index
    assert value == device("npu:1")


@pytest.mark.parametrize("spec", SPECS)
def test_D1_pickle_and_copy(spec):
    value = device(spec)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) is value
    assert copy.copy(value) is value and copy.deepcopy([value])[0] is value


def test_D1_to_torch_says_when_torch_cannot(after_torch):
    code = """
import torch
from mindtorch.devices.names import device
try:
    device("npu:1").to_torch()
except RuntimeError as error:
    assert "npu:1" in str(error), error
else:
    raise SystemExit("no error")
"""
    after_torch(code)


BAD = [
    "foo", "", "npu:", "npu:-1", "npu:01", "npu:1:2", "npu: 1", "npu:\u0661", "npu:\uff11", "npu:128", "npu:300",
    "npu:99999999999999", "npu:" + "9" * 5000, "npu:1 ", " npu", "npu\n", "npu:1\n", "NPU", "npu:+1", "npu:1.0",
    "npu:a", ":1", "1", "npu:\x00", "npu\x00", "cuda:00", "mps", "privateuseone", "remote-accelerator", "n\u00fcpu",
]  # fmt: skip


@pytest.mark.parametrize("spec", BAD, ids=[ascii(b)[:20] for b in BAD])
def test_D2_bad_strings(spec):
    with pytest.raises(RuntimeError) as caught:
        device(spec)
    for kind in DEVICE_TYPES:
        assert kind in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "args",
    [("npu", -1), ("npu", 128), ("npu", 300), ("npu", 2**70), ("npu", 1.0), ("npu", True), ("npu", "0"), ("npu:0", 1),
     ("foo", 1), ("", 1), (1.0,), (None,), (True,), (["npu"],), (torch.device("cpu"), 1), (torch.device("mps"),),
     (torch.device("cpu:128"),)],
    ids=repr,
)  # fmt: skip
def test_D2_bad_arguments(args):
    with pytest.raises(RuntimeError) as caught:
        device(*args)
    for kind in DEVICE_TYPES:
        assert kind in str(caught.value)


def test_D2_wrong_python_types_are_type_errors_too():
    for args in [("npu", 1.0), ("npu", True), (1.5,)]:
        with pytest.raises(TypeError):
            device(*args)


def test_D2_torch_refuses_the_same_strings():
    # What torch itself does with the same strings, so that a new torch version tells us when it changes.
    for tail in (":", ":-1", ":01", ":1:2", ": 1", ":\u0661"):
        with pytest.raises(RuntimeError, match="Invalid device string"):
            torch.device("cpu" + tail)
    # torch wraps these silently; here they are refused.
    assert torch.device("cpu:255") == torch.device("cpu")
    assert torch.device("cpu:128").index != 128


def test_D2_index_may_be_any_integer_type():
    numpy = pytest.importorskip("numpy")
    assert device("npu", numpy.int64(1)) is device("npu:1")


def test_D3_default_is_cpu_without_index():
    assert get_default_device() is device("cpu")
    assert get_default_device().index is None


def test_D3_set_and_clear():
    set_default_device("npu:1")
    assert get_default_device() == device("npu:1")
    set_default_device(torch.device("meta"))
    assert get_default_device() == device("meta")
    set_default_device(None)
    assert get_default_device() == device("cpu")
    with pytest.raises(RuntimeError):
        set_default_device("foo")
    assert get_default_device() == device("cpu")


def test_D3_with_blocks_nest_and_unwind():
    one = device("npu:1")
    with one as entered:
        assert entered is one and get_default_device() is one
        with device("meta"):
            assert get_default_device() == device("meta")
            set_default_device("npu:7")  # the block keeps the upper hand
            assert get_default_device() == device("meta")
            with one, pytest.raises(ValueError):
                with device("cpu"):
                    raise ValueError
            assert get_default_device() == device("meta")
        assert get_default_device() is one
    assert get_default_device() == device("npu:7")


def test_D3_thread_local():
    seen = {}
    inside, leave = threading.Event(), threading.Event()

    def other():
        seen["start"] = get_default_device()
        with device("npu:2"):
            inside.set()
            leave.wait(10)
            seen["inside"] = get_default_device()
        seen["end"] = get_default_device()

    with device("npu:1"):
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        assert get_default_device() == device("npu:1")
    assert get_default_device() == device("cpu")
    leave.set()
    thread.join()
    assert seen == {"start": device("cpu"), "inside": device("npu:2"), "end": device("cpu")}


def test_D3_torch_follows_where_it_can():
    with device("meta"):
        assert torch.empty(2).device == device("meta")
        assert torch.nn.Linear(2, 2).weight.is_meta
    assert torch.empty(2).device == device("cpu")
    set_default_device("meta")
    assert torch.empty(2).is_meta
    set_default_device("npu:1")  # torch cannot express it: it must not keep the one before
    if mindtorch.npu.is_available():  # the test library, where tests/npu ran before
        assert torch.empty(2).device == device("npu:1")
    else:
        with pytest.raises(RuntimeError, match="npu is not available"):
            torch.empty(2)


def test_D3_decorator():
    @device("npu:3")
    def where():
        return get_default_device()

    assert where() == device("npu:3")
    assert where.__name__ == "where"
    assert get_default_device() == device("cpu")


def test_D1_module_does_not_import_torch():
    code = "import sys; sys.argv = ['genie']; import mindtorch.devices.names; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- whose a device is -----------------------------------------------------------------------------------------------
PLACES = {
    "cpu": TORCHS, "cuda:1": TORCHS, "meta": META, "meta:1": META, "npu": NPU, "npu:1": NPU,
    "remote_accelerator": RECORDED, "remote_accelerator:127": RECORDED,
}  # fmt: skip


@pytest.mark.parametrize("spec", PLACES)
def test_D5_the_place_of_a_device_however_it_is_named(spec):
    named = [spec, device(spec), *([torch.device(spec)] if torch_can(spec) else [])]
    assert [where(each) for each in named] == [PLACES[spec]] * len(named)
    with estimating():
        assert {where(each) for each in named} == {ESTIMATED} and not ESTIMATED.has_data and ESTIMATED.records
    with cuda_is_ours():
        assert {where(each) for each in named} == {RECORDED if spec == "cuda:1" else PLACES[spec]}
    assert {where(each) for each in named} == {PLACES[spec]}


def test_D5_what_is_no_device_is_torchs():
    assert {where(each) for each in (None, 3, "", "xla:0", torch.zeros(1), [])} == {TORCHS}


@pytest.mark.parametrize("wrong", ["remote_accelerator0", "npu0", "remote_accelerator:x", "npu:x"])
@pytest.mark.parametrize("use", [lambda d: torch.zeros(2, device=d), lambda d: torch.zeros(2).to(d),
                                 lambda d: torch.nn.Linear(2, 2).to(d)])  # fmt: skip
def test_D2_a_wrong_index_of_ours_is_said_in_our_words(wrong, use):
    with pytest.raises(RuntimeError, match=f"one of {', '.join(DEVICE_TYPES)}.*"):
        use(wrong)


def test_S15_the_type_of_a_device_is_what_torch_says_also_after_it_got_its_name(
    after_torch: Callable[..., Any],
) -> None:
    code = """
        import torch, mindtorch
        from mindtorch.devices.places import type_of
        slot = torch.device("privateuseone", 1)
        assert [type_of(slot) for _ in range(2)] == ["privateuseone"] * 2
        torch.ones(1, device="remote_accelerator")  # torch is told the name
        made = [torch.device(kind, 1) for kind in ("cuda", "cpu", "meta", "xla", "remote_accelerator")]
        for device in [slot, *made, *made]:
            assert type_of(device) == device.type == type_of(str(device))
        assert type_of(None) is type_of(0) is None
        print(slot.type)
    """
    assert after_torch(code).stdout.split() == ["remote_accelerator"]
