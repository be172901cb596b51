"""What everything else may use, and what uses nothing of ours: configuration, errors, the machine, warnings."""

import os

#: The package as programs import it.
NAME = __name__.partition(".")[0]
#: The installed package: every Python file of ours lies in it.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Of the package; pyproject.toml takes it from here.
VERSION = "0.2.0"
