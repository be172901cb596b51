"""Makes docs/report.svg, the README's picture: what `genie profile examples/gpt2.py` prints on a terminal here and now.

    python docs/make_picture.py

Nothing is drawn by hand. rich turns the command's own output, colours included, into the picture; the template is ours
because rich's loads fonts from the network.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "report.svg"
COMMAND = "genie profile examples/gpt2.py"
WIDTH = 80

# rich fills in the names in braces; what is doubled is a brace of CSS. Fonts are the reader's own.
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
{styles}
</style>
<defs>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def terminal_output(command: str) -> str:
    """What the command prints on a terminal of `WIDTH` columns with colours. Raises when it fails."""
    env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8"}
    env.pop("NO_COLOR", None)
    program = "import sys; from mindtorch.cli.main import entry; entry()"  # genie, of the Python that runs this
    words = [sys.executable, "-c", program, *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return done.stdout


def picture(command: str, output: str) -> str:
    """The SVG of a terminal in which ``command`` printed ``output`` (with its escape sequences)."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(output, no_wrap=True), soft_wrap=True)
    svg = console.export_svg(title="", code_format=TEMPLATE, unique_id="report")
    return "".join(f"{line.strip()}\n" for line in svg.splitlines() if line.strip())


if __name__ == "__main__":
    PICTURE.write_text(picture(COMMAND, terminal_output(COMMAND)), encoding="utf-8")
