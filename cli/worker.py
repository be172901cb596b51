"""``genie worker``: machines that compute for others (SPEC C9)."""

from __future__ import annotations

import click

from mindtorch.base.errors import UsageError

__all__ = ["command"]

_EPILOG = """\b
Examples:
  genie worker start                          for programs on this machine
  genie worker start --host 10.0.0.5          for other machines too, at this address
  genie worker start --join 10.0.0.5:6379     one more machine for the same cluster
  genie worker list --address 10.0.0.5:6379   its machines, and who uses them
"""
_LOOK = 0.5  # seconds


@click.group(name="worker", epilog=_EPILOG, short_help="Let programs on other machines compute on this one.")
def command() -> None:
    """Start a worker of a Ray cluster, for genie run --executor ray, or list a cluster's machines and who uses them.

    Anyone holding a cluster's token can run arbitrary code on its machines. Needs pip install 'mindtorch-genie[ray]'.
    """


@command.command()
@click.option("--host", metavar="IP", help="This machine's address, as other machines reach it.")
@click.option(
    "--port", type=click.IntRange(1024, 65535), default=6379, show_default=True, help="Port of a new cluster."
)
@click.option("--join", metavar="HOST:PORT", help="Join a running cluster; its token must be in RAY_AUTH_TOKEN.")
@click.option("--cpus", type=click.IntRange(0), metavar="N", help="CPUs that programs may use (default: all).")
@click.option("--gpus", type=click.IntRange(0), metavar="N", help="GPUs that programs may use (default: all).")
@click.option(
    "--files",
    multiple=True,
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="A folder from which workers may read weights directly, under the path that programs use, and in which "
    "they may save checkpoints. May be repeated.",
)
@click.argument("ray_options", nargs=-1, metavar="[-- RAY_OPTIONS]")
def start(
    host: str | None, port: int, join: str | None, cpus: int | None, gpus: int | None, files: tuple[str, ...],
    ray_options: tuple[str, ...],
) -> int:  # fmt: skip
    """Start a worker here; it runs until Ctrl-C or SIGTERM. Without --host, only this machine's programs reach it.

    Options after -- go to ray start, such as -- --labels=zone=a --resources='{"tpu": 1}'.
    """
    import signal
    import time

    from mindtorch.cluster import nodes

    signal.signal(signal.SIGTERM, _terminate)
    with nodes.started(host or nodes.default_host(join), port, join, cpus, gpus, files, ray_options) as node:
        click.echo(f"genie worker: ready, in the cluster at {node.address}; Ctrl-C stops it")
        if join is None:
            click.echo(f"to use it:        export RAY_AUTH_TOKEN={node.token}")
            click.echo(f"                  genie run --executor ray --address {node.address} train.py")
            if host is not None:
                click.echo(f"on more machines: genie worker start --join {node.address}, with the same RAY_AUTH_TOKEN")
        while node.process.poll() is None:
            time.sleep(_LOOK)
    if join:
        raise UsageError(
            "the cluster has ended, or it removed this machine while the machine was unreachable: then --join again"
        )
    raise UsageError("Ray has ended")


def _terminate(number: int, _frame: object) -> None:
    """As Ctrl-C: what was started is ended first."""
    raise SystemExit(128 + number)


@command.command(name="list")
@click.option("--address", metavar="ADDRESS", help="The cluster (default: GENIE_ADDRESS, or the one on this machine).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(address: str | None, as_json: bool) -> None:
    """List a cluster's machines, and the programs that have workers there or wait for free resources.

    For each program: its user, name, host, process and start; for each worker: its machine, process, reserved
    resources and start.
    """
    from mindtorch.base import config
    from mindtorch.cluster.nodes import nodes_and_sessions

    where = address or (config.address() if config.address() != "local" else "auto")
    found, sessions = nodes_and_sessions(where)
    if as_json:
        import json

        told = {"schema_version": 1, "address": where, "nodes": found, "sessions": sessions}
        click.echo(json.dumps(told, indent=1))
        return
    from .report_devices import node_text
    from .report_sessions import lines

    for node in found:
        click.echo(f"{node['address']:<18}{node['id']}  {node_text(node)}")
    for line in lines(sessions, found):
        click.echo(line)
