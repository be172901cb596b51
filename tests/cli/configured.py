"""``genie profile`` of a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from mindtorch.cli.main import cli


def profile_config(config: dict[str, Any], *options: str) -> Any:
    """How the command ends for a config.json with this content, in the working directory; the report is out.json."""
    Path("config.json").write_text(json.dumps(config))
    return CliRunner().invoke(cli, ["profile", "--json", "out.json", *options, "config.json"], prog_name="genie")
