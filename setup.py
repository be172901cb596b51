"""What pyproject.toml cannot say: one package from three folders, Cython modules found by looking.

The modules include Python's C headers only, never torch's or numpy's, so one wheel serves every torch version.

Each Python has a wheel of its own, none is ``abi3``: a wheel is that only if all its modules are. 18 of 56 do not
compile against Python 3.10's limited API: most read CPython's structs (``_ext/interpreter.pxd``). When there were 42
modules, the 31 that could be built so were 5 % smaller and recorded ``x + y`` as fast (1.2 to 1.3 µs either way): only
fewer wheels would be won, which the others forbid.

``GENIE_BUILD`` (comma-separated) changes how the extension modules are built:

* ``debug``     bounds checks, wraparound, overflow and None checks; ``-O1 -g``
* ``quick``     not optimized: for tests of the package, not of its speed
* ``asan``      AddressSanitizer and UBSan (run with ``LD_PRELOAD=$(cc -print-file-name=libasan.so)``)
* ``tsan``      ThreadSanitizer (run with ``LD_PRELOAD=$(cc -print-file-name=libtsan.so)``)
* ``annotate``  Cython's HTML annotation beside the C files in ``build/``
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

if "t" in getattr(sys, "abiflags", ""):
    raise SystemExit("mindtorch-genie: expected a Python with the global interpreter lock, got a free-threaded build")

ROOT = Path(__file__).resolve().parent
OPTIONS = {word.strip() for word in os.environ.get("GENIE_BUILD", "").split(",") if word.strip()}
if unknown := OPTIONS - {"debug", "quick", "asan", "tsan", "annotate"}:
    raise SystemExit(f"GENIE_BUILD: unknown {', '.join(sorted(unknown))}. Options: debug, quick, asan, tsan, annotate")
DEBUG = "debug" in OPTIONS

# The one place for directives: Cython ignores a misspelt "# cython:" header without a word.
DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "embedsignature": False,
    "cdivision": True,
    "boundscheck": DEBUG,
    "wraparound": DEBUG,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "overflowcheck": DEBUG,
}

COMPILE = ["-O1", "-g", "-fno-omit-frame-pointer"] if DEBUG else ["-O2", "-g0"]
LINK: list[str] = []
if "quick" in OPTIONS:
    COMPILE = ["-O0", "-g0"]
if "asan" in OPTIONS:
    # Not optimized: that takes four times as long to compile, and may leave out the very access that is wrong.
    COMPILE = ["-O0", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
    LINK.append("-fsanitize=address,undefined")
if "tsan" in OPTIONS:
    COMPILE = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=thread"]
    LINK.append("-fsanitize=thread")
# The arena hands out typed pointers into raw chunks, as malloc would.
COMPILE += ["-fno-strict-aliasing", "-Wno-unused-function"]
if os.name == "nt":
    COMPILE, LINK = ["/O2"], []

#: Compiled as C++, where there is a compiler of it: what they make faster is slower elsewhere.
CXX = {"catching"}

PACKAGES = (
    find_packages(str(ROOT), include=["mindtorch", "mindtorch.*"])
    + ["mindtorch._ext", "mindtorch.cli"]
    + [f"mindtorch.cli.{name}" for name in find_packages(str(ROOT / "cli"))]
)


def mirror_sources(target: Path) -> None:
    """Copy ``_ext`` to ``target/mindtorch/_ext``.

    Cython resolves ``cimport`` by folder names and knows nothing of package_dir, so it needs the installed layout.
    Times are kept and unchanged files left alone: cythonize then redoes only what changed.
    """
    folder = target / "mindtorch" / "_ext"
    folder.mkdir(parents=True, exist_ok=True)
    for package in (target / "mindtorch", folder):
        (package / "__init__.py").touch()
    sources = {path.name: path for pattern in ("*.pyx", "*.pxd") for path in (ROOT / "_ext").glob(pattern)}
    for old in [*folder.glob("*.pyx"), *folder.glob("*.pxd")]:
        if old.name not in sources:
            old.unlink()
    for name, path in sources.items():
        copy = folder / name
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copy2(path, copy)


class BuildExt(build_ext):
    """Cythonizes from a mirror of the source tree, and only when a build asks for it (an sdist needs no Cython)."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = os.cpu_count() or 1

    def build_extensions(self) -> None:
        # Imported here: reading the metadata or making an sdist must not need it.
        from Cython.Build import cythonize

        base = Path(self.build_temp).resolve()
        base.mkdir(parents=True, exist_ok=True)
        stamp, asked = base / "genie-build-options.txt", bool(self.force)
        chosen = ",".join(sorted(OPTIONS)) or "release"
        if not stamp.exists() or stamp.read_text() != chosen:
            self.force = True  # time stamps say nothing about other options of the compiler
        mirror = base / "cython"
        mirror_sources(mirror)
        # The same C for every build that has the same directives: another build's folder may be copied here.
        translated = mirror / "directives.txt"
        directives = f"{DIRECTIVES} {'annotate' in OPTIONS}"
        here = os.getcwd()
        os.chdir(mirror)  # so that tracebacks say "mindtorch/_ext/tape.pyx"
        try:
            made = cythonize(
                [
                    Extension(ext.name, [f"mindtorch/_ext/{Path(ext.sources[0]).name}"], language=ext.language)
                    for ext in self.extensions
                ],
                compiler_directives=DIRECTIVES,
                include_path=["."],
                annotate="annotate" in OPTIONS,
                force=asked or not translated.exists() or translated.read_text() != directives,
                nthreads=self.parallel or 0,
            )
        finally:
            os.chdir(here)
        translated.write_text(directives)
        c_files = {ext.name: [os.path.relpath(mirror / source, here) for source in ext.sources] for ext in made}
        for ext in self.extensions:
            ext.sources = c_files[ext.name]
        super().build_extensions()
        stamp.write_text(chosen)


class Build(build):
    """Drops what an earlier build in the same folder left behind, so that the wheel holds only today's files."""

    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return
        wanted = {os.path.abspath(path) for name in self.get_sub_commands() for path in self.outputs_of(name)}
        for path in Path(self.build_lib).resolve().rglob("*"):
            if path.is_file() and str(path) not in wanted:
                path.unlink()

    def outputs_of(self, name: str) -> list[str]:
        return list(self.get_finalized_command(name).get_outputs())


def package_page() -> str:
    """The README with absolute links and an absolute picture: a package index has no files beside it."""
    (source,) = re.findall(r'^Source = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r'(?<= src=")(?!https:)', f"{source}/raw/main/", text)
    return re.sub(r"(?<=\]\()(?!https:|#)", f"{source}/blob/main/", text)


setup(
    long_description=package_page(),
    long_description_content_type="text/markdown",
    packages=PACKAGES,
    package_dir={"mindtorch": "mindtorch", "mindtorch._ext": "_ext", "mindtorch.cli": "cli"},
    package_data={  # the sources of _ext are in the sdist alone
        "": ["py.typed", "*.pyi", "*.toml"],
        "mindtorch.base": ["viewer/*"],
        "mindtorch.graph": ["viewer/*"],
        "mindtorch.profile.report": ["viewer/*"],
    },
    include_package_data=False,
    ext_modules=[
        Extension(
            f"mindtorch._ext.{path.stem}",
            [f"_ext/{path.name}"],
            depends=sorted(f"_ext/{pxd.name}" for pxd in (ROOT / "_ext").glob("*.pxd")),
            extra_compile_args=COMPILE,
            extra_link_args=LINK,
            language="c++" if path.stem in CXX else "c",
            optional=path.stem in CXX,
        )
        for path in sorted((ROOT / "_ext").glob("*.pyx"))
    ],
    cmdclass={"build": Build, "build_ext": BuildExt},
    zip_safe=False,
)
