"""What a person would say of a report: at most five sentences, each with a place, a share and what to try (SPEC C2).

Every number is computed from the report's own rows, or from what the cost model says of the same calls done otherwise.
Each kind is one function, told of by `_KINDS`; its id does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mindtorch._ext import context
from mindtorch.base.file_names import short_names
from mindtorch.profile.report import memory_findings, time_findings
from mindtorch.profile.report.finding_inputs import Looked, Said
from mindtorch.profile.report.rows import Row

if TYPE_CHECKING:
    from mindtorch.profile.report.forecast import Forecast
    from mindtorch.profile.report.made_of import Labels
    from mindtorch.profile.report.recording import Recording

__all__ = ["findings"]

_MOST = 5  # told
_MATTERS = 0.05  # of the time or of the peak: less is not told
_BRIEF = 0.05  # seconds of a measured run: what is shorter, other programs of the machine may have made
_LITTLE = 1 << 20  # bytes of the peak
#: By id, which a reader of the JSON may rely on.
_KINDS: Mapping[str, Callable[[Looked], Said | None]] = {
    "data-wait": time_findings.data,
    "python-line": time_findings.python,
    "first-iteration": time_findings.first,
    "host-bound": time_findings.host,
    "gpu-idle": time_findings.idle,
    "device-reads": time_findings.reads,
    "attention-written-out": time_findings.attention,
    "float32-products": time_findings.float32,
    "optimizer-unfused": time_findings.optimizer,
    "activations": memory_findings.activations,
    "kept-gradients": memory_findings.gradients,
    "no-grad": memory_findings.no_grad,
}


def findings(
    seen: Recording, report: Mapping[str, Any], rows: Iterable[Row], forecast: Forecast | None, labels: Labels
) -> list[dict[str, Any]]:
    """The sentences, the largest share first. rows: by signature, module, line and phase; report: but for these.

    Each has ``id``, ``text``, ``share`` (``of`` the time or the peak), ``seconds`` (None of a share of the peak),
    ``place`` and ``try``.
    """
    looked = Looked(seen, report, rows, forecast, labels)
    found = []
    for name, kind in _KINDS.items():
        said = kind(looked)
        if said is None or said.share < _MATTERS:
            continue
        if said.of == "time" and seen.mode == "measured" and said.share * looked.time_s < _BRIEF:
            continue
        if said.of == "peak" and said.share < looked.whole(_LITTLE):
            continue
        found.append((name, said))
    found.sort(key=lambda item: -item[1].share)
    lines = map(context.location, {row.location for row in looked.rows} if found else ())
    names = short_names([where[0] for where in lines if where] + [said.place["file"] for _, said in found])
    return [
        {
            "id": name,
            "text": said.text + _where(said.place, names),
            "share": said.share,
            "of": said.of,
            "seconds": said.share * looked.time_s if said.of == "time" else None,
            "place": said.place,
            "try": said.to_try,
        }
        for name, said in found[:_MOST]
    ]


def _where(place: Mapping[str, Any], names: Mapping[str, str]) -> str:
    if place["file"]:
        return f" ({names[place['file']]}:{place['line']})"
    return f" ({place['module']})" if place["module"] else ""
