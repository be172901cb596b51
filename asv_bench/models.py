"""Whole models as an estimate sees them: what each call computes and moves, by the same code as ``genie profile``."""

from __future__ import annotations

import csv
import json
import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindtorch.profile.cost import op_time, targets
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work


@dataclass
class Model:
    """One row of `models_fp32.csv`. works: (work, of a backward pass, calls)."""

    chip: Target
    name: str
    mode: str
    seq: int
    batch: int
    seconds: float
    works: list[tuple[Work, bool, int]]


def read(folder: Path) -> list[Model]:
    """Those of which the folder has a configuration."""
    found = []
    path = folder / "models_fp32.csv"
    seen: dict[Any, Any] = {}
    for row in csv.DictReader(path.open()) if path.exists() else []:
        config = folder / "models" / f"{row['model']}.json"
        if not config.exists():
            continue
        key = row["model"], row["mode"], int(row["seq"]), int(row["batch"])
        if key not in seen:
            seen[key] = _works(config, *key[1:])
        chip = targets.find(row["gpu"])
        found.append(Model(chip, *key, float(row["total_ms"]) / 1e3, seen[key]))
    return found


def _works(config: Path, mode: str, seq: int, batch: int) -> list[tuple[Work, bool, int]]:
    import torch
    import transformers

    from mindtorch._ext import context
    from mindtorch.profile.estimate.estimator import Estimator

    logging.getLogger("transformers").setLevel(logging.ERROR)
    facts = json.loads(config.read_text())
    estimator = Estimator(target=targets.find("a100"))
    with estimator:
        kind = facts.pop("model_type", "gpt2")
        asked = transformers.AutoConfig.for_model(kind, **facts)
        model = getattr(transformers, facts["architectures"][0])._from_config(asked, attn_implementation="eager").cuda()
        ids = torch.zeros(batch, seq, dtype=torch.long, device="cuda")
        model.train(mode == "training")
        estimator.stage("main")
        with torch.set_grad_enabled(mode == "training"):
            out = model(ids, use_cache=False)
            if mode == "training":
                out.logits.sum().backward()
        estimator.stage("rest")
    seen = estimator.recording()
    found: Counter[tuple[Work, bool]] = Counter()
    backward = context.PHASES.index("backward")
    for row in seen.stages["main"].rows.tolist():
        work = seen.works[row[0]]
        if work is not None and not _dropout(work, mode):
            found[work, row[3] == backward] += row[4]
    return [(*key, calls) for key, calls in found.items()]


def _dropout(work: Work, mode: str) -> bool:
    """Dropout is one kernel on a GPU: what the CPU does in three is counted as its last one."""
    return mode == "training" and work.name in ("aten::bernoulli_", "aten::div_")


def seconds(model: Model, chip: Target) -> tuple[float, float, float]:
    """(of matrix products, of everything else, at least)."""
    matrix = rest = least = 0.0
    for work, _, calls in model.works:
        cost = op_time.estimate(work, chip)
        if cost.family == "product":
            matrix += calls * cost.seconds
        else:
            rest += calls * cost.seconds
        least += calls * cost.least
    return matrix, rest, least
