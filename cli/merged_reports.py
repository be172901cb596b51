"""The reports of several ranks that torchrun has started, in files side by side (SPEC C2)."""

from __future__ import annotations

import json

import click

from mindtorch.base.ranks import Rank, merge
from mindtorch.profile.report.export import write_json

from .output import OutputFile

__all__ = ["merge_ranks"]


def merge_ranks(rank: Rank, file: OutputFile) -> None:
    """Merge the reports of all ranks when this one is the last; nothing to do before."""
    reports = []
    import gzip  # which `genie --help` does without

    for number in range(rank.world_size):
        try:
            path = file.of_rank(number).path
            with gzip.open(path, "rt") if path.endswith(".gz") else open(path, encoding="utf-8") as source:
                reports.append(json.load(source))
        except (OSError, ValueError):
            return  # not there yet, on another machine, or being replaced: that rank will come here, too
        if (reports[-1].get("rank") or {}).get("run") != rank.run:
            return
    file.write(lambda path: write_json(merge(reports), path))
    click.echo(f"genie: wrote {file.name}, all {rank.world_size} ranks in one", err=True)
