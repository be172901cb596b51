"""C4: ``.to`` of what several ``vmap`` have put around a tensor, as transformers makes its masks."""

from __future__ import annotations

import pytest
import torch

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

L4 = targets.find("l4")


def pairs(where: str, dtype: torch.dtype | None) -> torch.Tensor:
    rows, columns = torch.arange(2, device=where), torch.arange(5, device=where)

    def at(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return (row >= column).to(rows.device, dtype)

    return torch.vmap(torch.vmap(at, (None, 0)), (0, None))(rows, columns)


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_C4_moves_to_the_device_of_a_mask_keep_its_values(dtype: torch.dtype | None) -> None:
    """It raised "accessing `data` under vmap transform is not allowed"."""
    expected = pairs("cpu", dtype)
    with Estimator(target=L4):
        made = pairs("cuda", dtype)
        assert made.device.type == "cuda" and made.dtype is expected.dtype
        assert made.tolist() == expected.tolist()
