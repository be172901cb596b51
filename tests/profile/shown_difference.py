"""What the page of a comparison shows, checked against the comparison (SPEC C5)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mindtorch.profile.report import difference_page


def shown_adds_up(found: dict[str, Any]) -> dict[str, Any]:
    """What a page shows: its flame graph has all of both runs, its tables all that differs."""
    shown = difference_page.page_data(found)
    flame, totals = shown["flame"], found["totals"]
    sides = ("before", "after")
    for name in ("flops", "bytes", "ops", "params", *(["time"] if found["mode"] == "estimate" else [])):
        for when in sides:
            assert len(flame[f"{name}_{when}"]) == len(flame["depth"]) == len(flame["frame"])
            if name == "time":
                assert sum(flame[f"time_{when}"]) == pytest.approx(totals["time"][when], rel=1e-6)
            else:
                assert sum(flame[f"{name}_{when}"]) == totals[name][when], (name, when)
    assert flame["depth"][0] == 0
    assert all(after <= before + 1 for before, after in itertools.pairwise(flame["depth"]))
    for table, names in (("rows", ("flops", "bytes", "ops")), ("modules", ("flops", "bytes", "ops", "params"))):
        for name in names:
            assert differences(shown[table], name) == totals[name]["difference"], (table, name)
    assert differences(shown["held"], "bytes") == totals["peak"]["difference"]
    assert sum(after - before for _, before, after in shown["memory"]) == totals["peak"]["difference"]
    return shown


def differences(table: dict[str, Any], name: str) -> float:
    pairs = [row["figures"][name] for row in table["rows"] if name in row["figures"]]
    pairs += [table["rest"]["figures"][name]] if "rest" in table else []
    return sum(pair[1] - pair[0] for pair in pairs)
