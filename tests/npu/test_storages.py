"""N3: storages of NPU tensors: bytes, and elements as ``Tensor.storage()`` has them, as on the CPU."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


def written(storage: Any) -> Any:
    storage[1] = 5
    return storage.tolist()


CALLS: dict[str, Callable[[Any], Any]] = {
    "size": lambda s: (s.size(), len(s), s.nbytes(), s.element_size()),
    "tolist": lambda s: (s.tolist(), list(s)),
    "element": lambda s: (s[2], s[-1]),
    "write": written,
    "fill": lambda s: s.fill_(3).tolist(),
    "cpu": lambda s: (s.cpu().tolist(), type(s.cpu()), str(s.cpu().device)),
    "clone": lambda s: (s.clone().tolist(), s.clone().data_ptr() != s.data_ptr()),
    "copy": lambda s: s.clone().fill_(0).copy_(s).tolist(),
    "deepcopy": lambda s: [each.tolist() for each in copy.deepcopy([s, s])],
    "resize": lambda s: (s.resize_(3), s.size(), s.tolist())[1:],
    "is_shared": lambda s: (s.is_shared(), s.is_pinned()),
}
TYPED: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda s: (pickle.loads(pickle.dumps(s)).tolist(), type(pickle.loads(pickle.dumps(s)))),
    "half": lambda s: (s.half().tolist(), s.half().dtype),
    "long": lambda s: (s.long().tolist(), s.long().size()),
    "bool": lambda s: (s.bool().tolist(), s.bool().nbytes()),
    "set_": lambda s: torch.empty(0, device=s.device).set_(s, 1, (2, 2), (2, 1)).tolist(),
    "whole": lambda s: torch.empty(0, device=s.device).set_(s).tolist(),
    "untyped": lambda s: (s.untyped().tolist(), s.untyped().nbytes()),
    "kind": lambda s: (s.pickle_storage_type(), s.dtype, isinstance(s, torch.TypedStorage)),
}


@pytest.mark.parametrize("call", [*CALLS, *TYPED])
def test_N3_storages_of_elements_are_as_the_cpus(npu: ModuleType, call: str) -> None:
    run = {**CALLS, **TYPED}[call]
    t = torch.tensor([[1.5, 0.0, -2.0], [7.0, 300.0, 0.25]])
    assert run(t.to("npu").storage()) == run(t.clone().storage())


@pytest.mark.parametrize("call", [call for call in CALLS if call != "write"])  # bytes are written through tensors
def test_N3_storages_of_bytes_are_as_the_cpus(npu: ModuleType, call: str) -> None:
    t = torch.tensor([1, 2, 3, 250], dtype=torch.uint8)
    assert CALLS[call](t.to("npu").untyped_storage()) == CALLS[call](t.clone().untyped_storage())


def test_N3_a_storage_of_elements_is_the_tensors_own(npu: ModuleType) -> None:
    t = torch.arange(6.0, device="npu:0")
    storage = t[2:].storage()
    storage[0] = 9
    assert t.tolist() == [9, 1, 2, 3, 4, 5] and storage.data_ptr() == t.data_ptr() and storage.get_device() == 0
    with pytest.raises(RuntimeError, match=r"expected a storage of torch.float16"):
        torch.empty(0, dtype=torch.float16, device="npu").set_(storage)
    one, other = copy.deepcopy((t.untyped_storage(), t.untyped_storage()))
    assert one is other and one.fill_(0) is other and t.tolist() == [9, 1, 2, 3, 4, 5]


def test_N3_classes_of_storages(npu: ModuleType) -> None:
    made = npu.FloatStorage([1.0, 2.0])
    assert made.tolist() == [1.0, 2.0] and made.device.type == "npu" and npu.HalfStorage(3).size() == 3
    assert isinstance(made, npu.FloatStorage) and not isinstance(made, npu.HalfStorage)
    assert isinstance(made.long(), npu.LongStorage) and not isinstance(torch.FloatStorage(2), npu.FloatStorage)
