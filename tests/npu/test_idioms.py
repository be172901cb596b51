"""N3: idioms of public programs, on NPU tensors as on the CPU's."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


def test_N3_new_tensor_of_another_tensors_data(npu: ModuleType, devices: Any) -> None:
    plain, there = torch.tensor([1.5, 2.5]), torch.tensor([3, 4]).npu()
    for data in (plain, there, there.npu(), torch.tensor(7.0), torch.tensor(True).npu()):
        for one in (torch.zeros(2).npu(), torch.zeros(1, dtype=torch.int16).npu()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch would have clone() called
                made = one.new_tensor(data)
            assert made.device == one.device and made.dtype is one.dtype and made.data_ptr() != data.data_ptr()
            assert made.tolist() == data.cpu().to(one.dtype).tolist()
    made = there.new_tensor(plain, dtype=torch.float64, device="cpu", requires_grad=True)
    assert made.is_cpu and made.dtype is torch.float64 and made.requires_grad and made.tolist() == [1.5, 2.5]
    assert there.new_tensor([1.0, 2.0]).tolist() == [1, 2]


def test_N3_memory_is_given_back_and_taken_again_under_a_tensor(npu: ModuleType) -> None:
    """As sharded training does with its parameters between the layers' turns."""
    flat = torch.arange(1 << 20, dtype=torch.float32).npu()
    part, rest = flat[:4].view(2, 2), flat[-4:]
    storage, held = flat.untyped_storage(), npu.memory_allocated(0)
    assert storage.untyped() is storage and storage.size() == 4 << 20
    storage.resize_(0)
    assert (storage.size(), flat.untyped_storage().size(), flat.numel()) == (0, 0, 1 << 20)
    assert npu.memory_allocated(0) <= held - (4 << 20)
    for use in (lambda: part + 1, part.cpu, part.zero_, lambda: rest.copy_(torch.ones(4)), rest.sin, rest.tolist):
        with pytest.raises(RuntimeError, match="resized to 0"):
            use()
    storage.resize_(16)
    part.fill_(3)
    assert part.tolist() == [[3, 3], [3, 3]]
    with pytest.raises(RuntimeError, match="resized to 16"):
        rest.cpu()
    storage.resize_(4 << 20)
    assert part.tolist() == [[3, 3], [3, 3]], "what was there stays"
    flat.copy_(torch.arange(1 << 20, dtype=torch.float32))
    assert rest.tolist() == [(1 << 20) - 4.0 + i for i in range(4)]
    with pytest.raises(RuntimeError, match=r"expected 0 to 4194304 bytes.*got 4194305"):
        storage.resize_((4 << 20) + 1)


def test_N3_a_storage_that_gave_memory_back_is_copied_saved_and_grown(npu: ModuleType, tmp_path: Path) -> None:
    flat = torch.arange(64, dtype=torch.float32).npu()
    part = flat[:4]
    flat.untyped_storage().resize_(16)
    one, other = copy.deepcopy([part, flat])
    assert one.tolist() == [0, 1, 2, 3] and one.untyped_storage()._cdata == other.untyped_storage()._cdata
    assert other.untyped_storage().nbytes() == 16
    torch.save(part, tmp_path / "part.pt")
    assert torch.load(tmp_path / "part.pt", map_location="cpu").tolist() == [0, 1, 2, 3]
    for use in (other.cpu, lambda: torch.save(flat, tmp_path / "flat.pt")):
        with pytest.raises(RuntimeError, match="resized to 16"):
            use()
    part.resize_(5)  # more than there is left, less than there was
    part[4] = 7
    assert part.tolist() == [0, 1, 2, 3, 7]


def test_L7_a_seed_is_said_to_take_effect(in_npu_program: Any) -> None:
    said = in_npu_program(
        """
        import warnings, torch, mindtorch
        import mindtorch.npu.compat
        warnings.simplefilter("error")
        torch.manual_seed(3)
        drawn = torch.rand(3, device="npu").tolist()
        torch.manual_seed(3)
        print(drawn == torch.rand(3, device="npu").tolist(), mindtorch.npu._is_in_bad_fork())
        """
    )
    assert said == "True False\n"


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_N3_files_are_loaded_where_a_function_says(npu: ModuleType, devices: Any, tmp_path: Path, zipped: bool) -> None:
    whole = torch.arange(6.0).npu()
    saved = {"whole": whole, "part": whole[2:4], "plain": torch.ones(2)}
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    asked: list[str] = []

    def here(storage: Any, location: str) -> Any:
        asked.append(location)
        return storage

    def nowhere(storage: Any, location: str) -> None:
        return None  # as the file says

    for where, devices_of in ((here, ("cpu", "cpu")), (nowhere, ("cpu", "cpu")), ({"cpu": "npu:0"}, ("npu", "npu"))):
        loaded = torch.load(tmp_path / "a.pt", map_location=where, weights_only=False)
        assert (loaded["whole"].device.type, loaded["plain"].device.type) == devices_of, where
        assert loaded["whole"].tolist() == [0, 1, 2, 3, 4, 5] and loaded["plain"].tolist() == [1, 1]
        loaded["whole"].zero_()
        assert loaded["part"].tolist() == [0, 0], where
    assert set(asked) == {"cpu"}  # tensors on NPUs are saved as plain ones


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_N3_a_function_may_move_the_storages_of_a_file(npu: ModuleType, tmp_path: Path, zipped: bool) -> None:
    device, whole = f"npu:{npu.device_count() - 1}", torch.arange(6.0)
    saved = {"whole": whole, "part": whole[2:4], "bits": whole > 2}
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)

    def there(storage: Any, location: str) -> Any:
        if storage.nbytes() == 6:
            return None  # as the file says
        return torch.empty(0, dtype=torch.uint8).set_(storage).to(device).untyped_storage()

    loaded = torch.load(tmp_path / "a.pt", map_location=there, weights_only=False)
    assert [str(t.device) for t in loaded.values()] == [device, device, "cpu"]
    assert all(torch.equal(loaded[name].cpu(), saved[name]) for name in saved)
    loaded["whole"].zero_()
    assert loaded["part"].tolist() == [0, 0]
