"""The distribution: what an sdist and a wheel hold, and that each of them works (SPEC, "Packages and layout")."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXTENSIONS = sorted(path.stem for path in (ROOT / "_ext").glob("*.pyx"))
SOURCES = sorted(path.name for path in (ROOT / "_ext").iterdir() if path.suffix in {".pyx", ".pxd", ".pyi"})
STUBS = [name for name in SOURCES if name.endswith(".pyi")]
WORKFLOW = ROOT / ".github" / "workflows" / "wheels.yml"


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without the network from a copy, so the checkout stays as it is."""
    work = tmp_path_factory.mktemp("build")
    skipped = shutil.ignore_patterns(
        ".git", ".venv", "venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".asv", "*.so", "*.c"
    )
    shutil.copytree(ROOT, work / "src", ignore=skipped)
    command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(work / "dist")]
    run(*command, str(work / "src"), cwd=work)
    (made,) = (work / "dist").glob("*.tar.gz")
    return made


@pytest.fixture(scope="session")
def wheel(sdist: Path, translated: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from that sdist alone.

    Not optimized: how fast the modules are is no matter here, and that takes most of the time of compiling them.
    """
    work = tmp_path_factory.mktemp("wheel")
    shutil.unpack_archive(sdist, work)
    (source,) = work.iterdir()
    translated(work / "temp")
    (work / "options.cfg").write_text(f"[build]\nbuild_temp = {work / 'temp'}\n")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(work / "dist"), str(source)]
    options = {"GENIE_BUILD": "quick", "DIST_EXTRA_CONFIG": str(work / "options.cfg")}
    run(*command, cwd=work, env={**os.environ, **options})
    (made,) = (work / "dist").glob("*.whl")
    return made


@pytest.fixture(scope="session")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed into a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    run(*pip, str(wheel), cwd=target)
    return target


def elsewhere(site: Path) -> dict[str, str]:
    """An environment in which the unpacked wheel comes before whatever is installed."""
    return {**os.environ, "PYTHONPATH": str(site)}


def test_layout_sdist_holds_what_a_build_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"_ext/{name}" for name in SOURCES} <= names
    assert {"setup.py", "pyproject.toml", "constraints.txt", "LICENSE", "README.md", "CHANGELOG.md"} <= names
    assert {"mindtorch/py.typed", "mindtorch/base/errors.py", "cli/main.py", "examples/gpt2.py"} <= names
    assert {"mindtorch/base/viewer/page.html", "mindtorch/graph/viewer/graph.js"} <= names
    assert {f"docs/{path.name}" for path in (ROOT / "docs").iterdir() if path.is_file()} <= names
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]


def holds_only_mindtorch(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"mindtorch"}
    python = {f"mindtorch/{path.relative_to(ROOT / 'mindtorch')}" for path in (ROOT / "mindtorch").rglob("*.py")}
    python |= {f"mindtorch/cli/{path.relative_to(ROOT / 'cli')}" for path in (ROOT / "cli").rglob("*.py")}
    assert python <= names
    viewer = {f"mindtorch/{path.relative_to(ROOT / 'mindtorch')}" for path in (ROOT / "mindtorch").rglob("viewer/*")}
    assert len(viewer) > 10 and viewer <= names
    assert {"mindtorch/py.typed", *(f"mindtorch/_ext/{name}" for name in STUBS)} <= names
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".c", ".h", ".pyc"))], "no sources of _ext"
    assert not [name for name in names if re.search(r"(^|/)(tests?|conftest|test_\w+)(\.py)?(/|$)", name)], "no tests"
    compiled = sorted(re.sub(r"\..*", "", Path(name).name) for name in names if name.endswith((".so", ".pyd")))
    assert compiled == EXTENSIONS


@pytest.mark.whole  # to compile takes minutes: continuous integration has installed a wheel, and looks into that below
def test_layout_wheel_holds_only_mindtorch(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len({name.split("/")[0] for name in names}) == 2
    holds_only_mindtorch(set(names))


@pytest.mark.whole
def test_layout_wheel_from_sdist_works(unpacked: Path, tmp_path: Path) -> None:
    assert {path.name for path in unpacked.iterdir()} - {"bin"} == {
        "mindtorch",
        next(unpacked.glob("*.dist-info")).name,
    }
    code = (
        "import importlib, mindtorch\nfor name in {}: print(importlib.import_module('mindtorch._ext.' + name).__file__)"
    )
    printed = run(sys.executable, "-c", code.format(EXTENSIONS), cwd=tmp_path, env=elsewhere(unpacked)).split()
    assert len(printed) == len(EXTENSIONS) > 0
    assert all(Path(line).is_relative_to(unpacked) for line in printed)


@pytest.mark.whole
def test_layout_console_script_genie(unpacked: Path, tmp_path: Path) -> None:
    printed = run(sys.executable, str(unpacked / "bin" / "genie"), "--help", cwd=tmp_path, env=elsewhere(unpacked))
    for command in ("profile", "graph", "devices"):
        assert command in printed


def test_layout_metadata(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        metadata = file.read().decode()
    assert "\nName: mindtorch-genie\n" in metadata
    required = set(re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE))
    assert required == {"torch", "numpy", "click", "rich"}, "only these, without an extra"
    assert re.search(r"^Requires-Python: >=3\.10$", metadata, re.MULTILINE)
    urls = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", metadata, re.MULTILINE))
    assert {"Source", "Documentation", "Issues", "Changelog"} <= set(urls)
    page = metadata.partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)\"", page)
    assert len(links) > 15 and page.startswith("# mindtorch")
    assert [link for pair in links for link in pair if link and not link.startswith(urls["Source"] + "/")] == []
    named = {link.partition("/main/")[2] for pair in links for link in pair if link}
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_layout_one_place_says_the_version(sdist: Path) -> None:
    """The package's `base` does: pyproject.toml takes it from there, and the changelog tells what came with it."""
    version = re.search(r'^VERSION = "(.+)"$', (ROOT / "mindtorch" / "base" / "__init__.py").read_text(), re.MULTILINE)
    assert version is not None
    assert sdist.name.removesuffix(".tar.gz").split("-")[1] == version[1]
    assert 'version = "' not in (ROOT / "pyproject.toml").read_text().partition("[tool.")[0]
    assert re.search(rf"^## \[{re.escape(version[1])}\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_layout_the_workflow_pins_its_actions_by_commit() -> None:
    """What a tag means can be changed by others; only the job that publishes may sign."""
    text = WORKFLOW.read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert len(used) > 5
    loose = [name for name, rest in used if not re.search(r"@[0-9a-f]{40}$", name) or not re.match(r" # v\d", rest)]
    assert loose == []
    jobs = re.split(r"(?m)^  (?=\w+:$)", text.partition("\njobs:\n")[2])
    assert [job.split(":")[0].strip() for job in jobs if "id-token: write" in job] == ["publish"]
    assert "\npermissions: {}\n" in text and "password:" not in text and "secrets." not in text


def test_layout_every_python_that_is_promised_has_a_wheel() -> None:
    """Those of the classifiers have been tried here; the workflow builds and tries one more."""
    project, _, tools = (ROOT / "pyproject.toml").read_text().partition("[tool.cibuildwheel]")
    tried = re.findall(r'Python :: (3\.\d+)"', project)
    build = re.findall(r'"cp3(\d+)-\*"', tools.partition("skip")[0])
    assert [f"3.{minor}" for minor in build] == [*tried, "3.14"]
    assert all(f'"3.{minor}"' in WORKFLOW.read_text() for minor in build)
    assert 'requires-python = ">=3.10"' in project


def test_layout_nothing_but_mindtorch_in_site_packages() -> None:
    """The distribution that the tests run against: not what building it left in the sources."""
    site = [sysconfig.get_path("purelib")]
    (distribution,) = importlib.metadata.distributions(name="mindtorch-genie", path=site)
    if any("__editable__" in path.name for path in distribution.files or []):
        pytest.skip("it is installed in place")
    holds_only_mindtorch(
        {str(path) for path in distribution.files or [] if path.parts[0] != ".." and path.suffix != ".pyc"}
    )
    scripts = {path.name for path in distribution.files or [] if path.parts[0] == ".."}
    assert scripts <= {"genie", "genie.exe"}


def test_layout_checkout_on_the_path_does_not_hide_the_compiled_modules(root: Path) -> None:
    """``python -c "import mindtorch"`` in the repository root finds ``./mindtorch`` first."""
    code = "import mindtorch, mindtorch._ext.tape as tape; print(mindtorch.__version__, tape.__file__)"
    version, file = run(sys.executable, "-c", code, cwd=root).split()
    assert version == importlib.metadata.version("mindtorch-genie")
    assert file.endswith((".so", ".pyd"))
