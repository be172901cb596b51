"""``torch_npu.utils``: refused by name."""

from __future__ import annotations

from ..refused import getter

__path__: list[str] = []

_REFUSED = {
    "FlopsCounter": "genie profile and torch.utils.flop_counter count FLOPs",
    "get_cann_version": "genie devices npu shows the version",
    "reset_thread_affinity": "threads stay where the system puts them",
    "save_async": "use torch.save",
    "set_thread_affinity": "threads stay where the system puts them",
    **dict.fromkeys(
        ("get_part_combined_tensor", "is_combined_tensor_valid", "npu_combine_tensors"),
        "tensors are not combined: each has memory of its own",
    ),
}
__getattr__ = getter("torch_npu.utils", _REFUSED)
