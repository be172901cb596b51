"""Memory that kernels take beyond what their results need: what an estimate adds to its storages."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from mindtorch import ops
from mindtorch._ext import lazy as _core
from mindtorch._ext import ledger
from mindtorch.profile.estimate import known_values

_log = logging.getLogger(__name__)
#: Losses that torch makes in the memory of their result, element by element, and then calls one number (`resize_`),
#: which keeps that memory. They are all in torch's operator database that do so; the CPU and CUDA share that code.
SHRINKING = frozenset(
    f"aten::{name}" for name in "mse_loss smooth_l1_loss soft_margin_loss binary_cross_entropy".split()
)


def over(sigs: Any) -> Any:
    """Bytes that CPU kernels take while they run, by the op table's rules: of each call of a ledger's log, given their
    signatures; 0 for most of them."""
    values, which = np.unique(sigs, return_inverse=True)
    return np.array([_scratch(int(sig)) for sig in values], np.int64)[which] if len(sigs) else np.zeros(0, np.int64)


def _scratch(sig: int) -> int:
    name = ledger.named(sig) if sig else ""
    ran = known_values.ran.get(name) if name else None
    if name is None:
        name = _core.sig_info(sig).name
    elif ran is not None:
        name = ops.op_name(ran[0])
    row = ops.about(name)
    if row.scratch is None:
        return 0
    from mindtorch.profile.estimate.distinct_calls import call_of

    _func, args, kwargs, out = ran or call_of(sig)
    try:
        return max(int(row.scratch(args, kwargs, out)), 0)
    except Exception as error:  # noqa: BLE001 - as of any cost: no report is lost by it
        _log.debug("scratch memory of this call of %s is unknown: %s", name, error)
        return 0
