"""Set-up of the graph tests: the models they share."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # modules the tests share; importlib mode leaves the path alone
