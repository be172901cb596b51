"""``genie devices``: what can be used here, why not, and what to do about it (SPEC C7)."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from mindtorch.base.errors import UsageError

__all__ = ["command"]

_REPORT = "npu-test.json"
_EPILOG = """\b
Examples:
  genie devices                 every device type
  genie devices npu             exit code 0 when it can be used, 3 when not
  genie devices cuda:1 --json   for scripts
  genie devices npu:1 --test    test an NPU, and write a report on it
"""


@click.command(name="devices", epilog=_EPILOG, short_help="Show which devices can be used here, and why others cannot.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--test",
    is_flag=True,
    help="For an NPU: test it, and compare the results of five models with those of the CPU. Takes minutes.",
)
@click.option(
    "--report", metavar="FILE", help=f"With --test: file for the report, to attach to an issue (default {_REPORT})."
)
@click.argument("name", required=False, metavar="[DEVICE]")
def command(name: str | None, as_json: bool, test: bool, report: str | None) -> int:
    """Show every device type, or only DEVICE (npu, cuda:0, ...): whether it can be used, why not and how to enable it,
    its memory, and versions.

    Exit code 3 if DEVICE cannot be used, 2 if there is no such device type, 1 if it fails --test.
    """
    from . import probe

    if (test or report) and (name or "").partition(":")[0] != "npu":
        raise UsageError("--test and --report are for an NPU: genie devices npu --test")
    if report and not test:
        raise UsageError("--report needs --test: genie devices npu --test --report FILE")

    if name is None:
        found = [probe.describe(kind) for kind in probe.DEVICE_TYPES]
    else:
        from mindtorch.devices.names import device

        try:
            asked = device(name)
        except RuntimeError as error:
            raise UsageError(str(error)) from error
        found = [probe.describe(asked.type, asked.index)]
    answer = {
        "schema_version": 1,
        "versions": probe.versions(),
        "torch_lost": probe.torch_lost(),
        "devices": found,
    }
    if test:
        return _try(answer, report or _REPORT, as_json)
    if as_json:
        click.echo(json.dumps(answer, indent=1, ensure_ascii=False))
    else:
        from .render import canvas
        from .report_devices import render_devices

        click.echo(render_devices(answer, canvas()), nl=False, color=True)
    sys.stdout.flush()
    return 3 if name is not None and not found[0]["available"] else 0


def _try(answer: dict[str, Any], file: str, as_json: bool) -> int:
    """Run the checks of the NPU that `answer` is about, show each as it ends, and write all of it to the file."""
    from mindtorch.npu import is_test_library, selftest, why_unavailable

    [device] = answer["devices"]
    if (reason := why_unavailable()) is not None:
        raise UsageError(f"npu cannot be tested: {reason}")
    if device["details"]["torch_npu"] is not None:
        raise UsageError("npu cannot be tested: torch_npu drives it, not mindtorch")
    if is_test_library():
        click.echo("a test library that uses host memory: the results say nothing about hardware", err=True)
    rows = answer["checks"] = []
    for row in selftest.run(device["index"] or 0):
        rows.append(row)
        click.echo(
            f"{row['result']:<8} {row['check']}: {row['seen'] or row.get('error', '').splitlines()[-1]}", err=as_json
        )
    with open(file, "w", encoding="utf-8") as stream:
        json.dump(answer, stream, indent=1, ensure_ascii=False)
    failed = [row["check"] for row in rows if row["result"] == "failed"]
    if as_json:
        click.echo(json.dumps(answer, indent=1, ensure_ascii=False))
    told = f"{len(failed)} of {len(rows)} failed ({', '.join(failed)})" if failed else f"none of {len(rows)} failed"
    click.echo(f"{told}; genie: wrote {file}; attach it to an issue", err=True)
    return 1 if failed else 0
