"""What starting costs beyond `import torch` (L1, C1): processor time of whole processes, one thread each."""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence

EMPTY = os.path.join(tempfile.gettempdir(), "genie_empty_program.py")
TORCH = [sys.executable, "-c", "import torch"]
STARTS = {
    "import": [sys.executable, "-c", "import torch; import mindtorch"],
    "profile": [sys.executable, "-m", "mindtorch", "profile", EMPTY],
}


def _seconds(command: Sequence[str]) -> float:
    """Of the user's and the system's time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Startup:
    params = (list(STARTS),)
    param_names = ("start",)
    timeout = 600
    unit = "s"

    def setup(self, start: str) -> None:
        with open(EMPTY, "w"):
            pass
        _seconds(STARTS[start])  # writes the bytecode

    def track_beyond_torch(self, start: str) -> float:
        """The least of several runs, less the least of as many that import torch alone."""
        pairs = [(_seconds(STARTS[start]), _seconds(TORCH)) for _ in range(7)]
        return min(ours for ours, _ in pairs) - min(torchs for _, torchs in pairs)
