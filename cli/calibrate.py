"""``genie calibrate``: measure the machine at hand, and write it down as a target of estimates."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command(name="calibrate", short_help="Measure this machine, so that estimates can target it.")
@click.argument("file", metavar="FILE.toml", type=click.Path(dir_okay=False, writable=True))
def command(file: str) -> int:
    """Measure this machine and write FILE.toml, for use as --target FILE.toml.

    Needs a GPU. Runs matrix products and a copy on it, and fits the factors of the target to the measured times. Takes
    about a minute.
    """
    from mindtorch.base.errors import UsageError

    if not file.endswith(".toml"):
        raise UsageError(f"[calibrate] expected a file name ending in .toml, as --target needs, got {file!r}")
    import mindtorch

    mindtorch._bootstrap()
    from mindtorch.profile.cost import calibrate_gpu

    text = calibrate_gpu.sheet()
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)
    click.echo(f"genie: wrote {file}; genie profile --target {file} …", err=True)
    return 0
