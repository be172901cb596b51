"""Op times beside torch.profiler's: ``python asv_bench/op_times.py [--runs N] [program ...]``.

Of the ten ops that are heaviest by torch.profiler's self time: time in a loop, after ten iterations, under the one and
the other. Processes of one thread, in turn, medians. Exits 1 where one is more than a tenth off. Takes six minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from overhead import PROGRAMS, printed

MOST = 10  # ops
MUST = 0.10
TEMPLATE = """
import json, sys
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
{setup}
def loop(times):
    for _ in range(times):
        {body}
loop(10)
if "torch" in sys.argv:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        loop({times})
    times = {{row.key: row.self_cpu_time_total * 1e-6 for row in p.key_averages()}}
else:
    import mindtorch
    loop(1)
    with mindtorch.profile() as p:
        loop({times})
    times = {{row["name"]: row["self_s"] for row in p.report()["ops"]}}
print("times", json.dumps(times), file=sys.stderr)
"""


def measured(path: Path, kind: str) -> dict[str, float]:
    """Seconds by op in one process."""
    found: dict[str, float] = json.loads(printed([sys.executable, str(path), kind], str(path.parent), "times"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="program", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--runs", type=int, default=5, help="processes of each kind (5)")
    asked = parser.parse_args()
    if unknown := set(asked.programs) - set(PROGRAMS):
        parser.error(f"no program is called {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    off = 0
    print(f"{'time of the op in the loop':50}{'torch':>10}{'genie':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.programs or PROGRAMS:
            path = Path(folder, "program.py")
            path.write_text(TEMPLATE.format(**PROGRAMS[name]._asdict()))
            runs = [[measured(path, kind) for kind in ("torch", "genie")] for _ in range(asked.runs)]
            torch, genie = (
                {op: statistics.median(run[i].get(op, 0.0) for run in runs) for op in runs[0][i]} for i in (0, 1)
            )
            for op in sorted(filter(torch.get, torch), key=lambda op: -torch[op])[:MOST]:
                ratio = genie.get(op, 0.0) / torch[op]
                wrong = abs(ratio - 1) > MUST
                off += wrong
                times = f"{torch[op] * 1e3:7.2f} ms{genie.get(op, 0.0) * 1e3:9.2f} ms"
                print(f"{name:28}{op:22}{times}{ratio:7.2f}x{' <' * wrong}", flush=True)
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())
