"""``genie devices``: what can be used here, why not, and what to do about it (SPEC C7)."""

from __future__ import annotations

import json
import sys

import click

from mindtorch.base.errors import UsageError

__all__ = ["command"]

_EPILOG = """\b
Examples:
  genie devices                 every device type
  genie devices npu             exit code 0 when it can be used, 3 when not
  genie devices cuda:1 --json   for scripts
"""


@click.command(name="devices", epilog=_EPILOG, short_help="Show which devices can be used here, and why others cannot.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("name", required=False, metavar="[DEVICE]")
def command(name: str | None, as_json: bool) -> int:
    """Show every device type, or DEVICE (npu, cuda:0, ...): usable or not and why, memory, versions, how to enable.

    Exit code 3 when DEVICE cannot be used, 2 when there is no such device type.
    """
    from . import probe

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
    if as_json:
        click.echo(json.dumps(answer, indent=1, ensure_ascii=False))
    else:
        from .render import canvas
        from .report_devices import render_devices

        click.echo(render_devices(answer, canvas()), nl=False, color=True)
    sys.stdout.flush()
    return 3 if name is not None and not found[0]["available"] else 0
