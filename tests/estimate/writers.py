# ruff: noqa: SIM115 - as programs do
"""A program that writes in every way there is, into the folder of its argument, and reads again what it wrote."""

import atexit
import codecs
import csv
import ctypes
import dbm.dumb
import gzip
import io
import json
import logging
import mmap
import os
import pickle
import shelve
import shutil
import sqlite3
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import torch

TIMES = (1_000_000_000, 2_000_000_000)


def same(*pairs):
    for got, wanted in pairs:
        assert got == wanted, f"expected {wanted!r}, got {got!r}"


def open_modes(at):
    loss = torch.nn.Linear(2, 1)(torch.ones(1, 2)).sum()
    with open("metrics.csv", "w") as file:
        file.write(f"{loss.item():.4f}")
    with open("log.txt", "a") as file:
        file.write("more")
    with open("both.txt", "r+") as file:
        file.seek(2)
        file.write("XX")
    with open("plus.bin", "w+b", buffering=0) as file:
        file.write(b"abc")
        file.seek(1)
        same((file.read(), b"bc"), (file.name, "plus.bin"))
    with open(at / "made.txt", "x") as file:
        file.write("new")
    same((open("metrics.csv").read(), "0.0000"), (open("log.txt").read(), "old\nmore"))
    same((open("both.txt").read(), "01XX456789"), (open(at / "made.txt").read(), "new"))
    try:
        open("made.txt", "x")
    except FileExistsError as error:
        same((error.filename, "made.txt"))
    else:
        raise AssertionError("it was there")
    for mode in ("r", "w"):
        try:
            open("nowhere/file.txt", mode)
        except FileNotFoundError as error:
            same((error.filename, "nowhere/file.txt"))
        else:
            raise AssertionError("there is no such folder")


def by_pathlib(at):
    (at / "notes.md").write_text("text")
    (at / "data.bin").write_bytes(b"bytes")
    with (at / "data.bin").open("ab") as file:
        file.write(b"!")
    (at / "deep" / "er").mkdir(parents=True)
    (at / "deep" / "er" / "empty").touch()
    (at / "moved.md").unlink(missing_ok=True)
    (at / "notes.md").rename(at / "moved.md")
    same(
        ((at / "moved.md").read_text(), "text"),
        ((at / "notes.md").exists(), False),
        ((at / "data.bin").stat().st_size, 6),
    )
    same((sorted(p.name for p in (at / "deep").rglob("*")), ["empty", "er"]))


def by_descriptor(at):
    descriptor = os.open("raw.bin", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, b"raw")
    os.close(descriptor)
    folder = os.open(at, os.O_RDONLY)
    descriptor = os.open("log.txt", os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
    os.fchmod(descriptor, 0o640)
    os.close(descriptor)
    os.mkdir("by_fd", dir_fd=folder)
    os.rename("raw.bin", "by_fd/raw.bin", src_dir_fd=folder, dst_dir_fd=folder)
    same((os.stat("by_fd/raw.bin", dir_fd=folder).st_size, 3), (os.stat("log.txt").st_size, 0))
    same((os.stat("log.txt").st_mode & 0o777, 0o640), ("by_fd" in os.listdir(folder), True))
    with os.scandir(folder) as entries:
        same(({e.name for e in entries if e.is_file()} >= {"log.txt", "both.txt"}, True))
    os.close(folder)


def truncated(at):
    os.truncate("both.txt", 4)
    with open("keep.txt", "r+") as file:
        file.truncate(1)
    same((os.path.getsize("both.txt"), 4), (os.path.getsize("keep.txt"), 1))


def renamed(at):
    os.rename("a.txt", "b.txt")  # over another one
    same((open("b.txt").read(), "a"), (os.path.exists("a.txt"), False))
    with open("both.txt.tmp", "w") as file:
        file.write("whole")
    os.replace("both.txt.tmp", "both.txt")
    same((open("both.txt").read(), "whole"))
    os.rename("folder", "folder2")
    same((sorted(os.listdir("folder2")), ["inner", "one.txt"]), (open("folder2/inner/two.txt").read(), "two"))
    same((os.path.isdir("folder"), False))
    os.mkdir("folder")
    same((os.listdir("folder"), []))


def removed(at):
    os.remove("b.txt")
    os.rmdir("empty")
    shutil.rmtree("tree")
    same((os.path.exists("b.txt"), False), (os.path.exists("empty"), False), (os.path.exists("tree/leaf.txt"), False))
    try:
        os.remove("b.txt")
    except FileNotFoundError as error:
        same((error.filename, "b.txt"))
    else:
        raise AssertionError("it was gone")
    try:
        os.rmdir("folder2")
    except OSError as error:
        same((error.strerror, "Directory not empty"))
    else:
        raise AssertionError("there are files in it")


def folders(at):
    os.makedirs("x/y/z")
    os.makedirs("x/y/z", exist_ok=True)
    with open("x/y/z/leaf", "w") as file:
        file.write("leaf")
    same((list(os.walk("x")), [("x", ["y"], []), ("x/y", ["z"], []), ("x/y/z", [], ["leaf"])]))
    os.chdir("x/y")
    with open("here.txt", "w") as file:
        file.write("here")
    same((os.getcwd(), str(at / "x" / "y")), (open("../y/here.txt").read(), "here"), (os.path.exists("z/leaf"), True))
    os.chdir(at)


def links(at):
    os.symlink("keep.txt", "soft")
    os.link("keep.txt", "hard")
    with open("soft", "a") as file:
        file.write("through the link")
    os.symlink(at / "x", "x2")
    same((os.readlink("soft"), "keep.txt"), (open("keep.txt").read(), "kthrough the link"))
    same((os.path.realpath("x2/y"), str(at / "x" / "y")), (open("x2/y/z/leaf").read(), "leaf"))
    with open("link.txt", "w") as file:  # a link of the disk's
        file.write("by a link")
    same((open("linked.txt").read(), "by a link"), (os.path.islink("link.txt"), True))


def properties(at):
    os.chmod("mode.txt", 0o755)
    os.utime("mode.txt", TIMES)
    os.utime("times", TIMES)
    same((os.stat("mode.txt").st_mode & 0o777, 0o755), (os.stat("mode.txt").st_mtime, TIMES[1]))
    same((os.stat("times").st_mtime, TIMES[1]))


def by_shutil(at):
    shutil.copy("mode.txt", "copied.txt")
    shutil.copy2("mode.txt", "x/copied2.txt")
    shutil.copytree("folder2", "copies")
    shutil.move("copies", "moved_copies")
    shutil.move("copied.txt", "x")
    shutil.make_archive("archive", "zip", "moved_copies")
    same((open("x/copied.txt").read(), "mode"), (open("moved_copies/inner/two.txt").read(), "two"))
    same((sorted(zipfile.ZipFile("archive.zip").namelist()), ["inner/", "inner/two.txt", "one.txt"]))


def texts(at):
    with open("table.csv", "w", newline="") as file:
        csv.writer(file).writerow(["a", 1])
    with open("state.json", "w") as file:
        json.dump({"a": 1}, file)
    with codecs.open("umlaut.txt", "w", "utf-8") as file:
        file.write("ü")
    with io.open("io.txt", "w") as file:  # noqa: UP020 - as older programs do
        file.write("io")
    same((open("table.csv").read(), "a,1\n"), (json.load(open("state.json")), {"a": 1}), (open("io.txt").read(), "io"))


def arrays(at):
    values = np.arange(6.0)
    np.save("a.npy", values)
    np.savez("b", x=values)
    np.savetxt("c.txt", values)
    values.tofile("d.bin")
    mapped = np.memmap("e.bin", dtype=np.uint8, mode="w+", shape=(4,))
    mapped[:] = 7
    mapped.flush()
    existing = np.memmap("mapped.bin", dtype=np.uint8, mode="r+")
    existing[0] = 9
    existing.flush()
    del mapped, existing
    same((np.load("a.npy").tolist(), values.tolist()), (np.load("b.npz")["x"].tolist(), values.tolist()))
    same((np.loadtxt("c.txt").tolist(), values.tolist()), (np.fromfile("d.bin").tolist(), values.tolist()))
    same((open("e.bin", "rb").read(), b"\7" * 4), (open("mapped.bin", "rb").read(), b"\x09123"))


def by_mmap(at):
    with open("mapped.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[1:3] = b"XY"
    same((open("mapped.bin", "rb").read(), b"\x09XY3"))


def databases(at):
    for name in ("new.db", "old.db"):
        with sqlite3.connect(name) as base:
            base.execute("create table if not exists t (a)")
            base.execute("insert into t values (2)")
        base.close()
        base = sqlite3.connect(f"file:{at / name}?mode=ro", uri=True)
        same((base.execute("select count(*) from t").fetchone(), (2 if name == "old.db" else 1,)))
        base.close()
    with dbm.dumb.open("plain.dbm", "c") as base:
        base[b"a"] = b"b"
    with shelve.Shelf(dbm.dumb.open("shelf", "c")) as base:
        base["a"] = [1]
    with dbm.dumb.open("plain.dbm", "r") as base:
        same((base[b"a"], b"b"))


def archives(at):
    with zipfile.ZipFile("z.zip", "w") as file:
        file.writestr("a", "b")
    with tarfile.open("t.tar.gz", "w:gz") as file:
        file.add("mode.txt")
    with gzip.open("g.gz", "wb") as file:
        file.write(b"packed")
    with tarfile.open("t.tar.gz") as file:
        file.extractall("unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    same((zipfile.ZipFile("z.zip").read("a"), b"b"), (open("unpacked/mode.txt").read(), "mode"))
    same((gzip.open("g.gz").read(), b"packed"))


def temporaries(at):
    with tempfile.NamedTemporaryFile("w", dir=at, delete=False) as file:
        file.write("complete")
    os.replace(file.name, "state.json")
    same((open("state.json").read(), "complete"))
    with tempfile.TemporaryDirectory(dir=at) as folder:
        Path(folder, "x").write_text("x")
        same((os.listdir(folder), ["x"]))
    same((os.path.exists(folder), False))
    handle, name = tempfile.mkstemp()
    os.write(handle, b"elsewhere")
    os.close(handle)
    shutil.move(name, "from_elsewhere")
    same((open("from_elsewhere").read(), "elsewhere"))
    with tempfile.TemporaryFile(dir=at) as file:
        file.write(b"nameless")


def tensors(at):
    model = torch.nn.Linear(2, 3)
    torch.save(model.state_dict(), "model.pt")  # the weights of last week
    torch.save(model, "checkpoints.pt.tmp")
    os.replace("checkpoints.pt.tmp", "checkpoints.pt")
    shutil.copy("checkpoints.pt", "best.pt")
    with open("pickled.pkl", "wb") as file:
        pickle.dump({"w": model.weight, "n": 1}, file)
    same((torch.load("model.pt")["weight"].shape, (3, 2)), (pickle.load(open("pickled.pkl", "rb"))["n"], 1))
    same(
        (torch.load("best.pt", weights_only=False).weight.shape, (3, 2)), (os.path.exists("checkpoints.pt.tmp"), False)
    )
    shutil.copy("weights.pt", "weights2.pt")  # of the disk's own
    same((torch.load("weights2.pt")["w"].shape, (3,)))
    try:
        from safetensors.torch import load_file, save_file
    except ImportError:
        return
    save_file({"w": torch.zeros(2, 2)}, "model.safetensors")
    same((load_file("model.safetensors")["w"].shape, (2, 2)))


def logs(at):
    logger = logging.getLogger("writers")
    handler = logging.FileHandler("run.log")
    logger.addHandler(handler)
    logger.warning("a line")
    handler.close()
    logger.removeHandler(handler)
    os.makedirs("runs", exist_ok=True)
    with open("runs/events.out.tfevents.1", "ab") as file:  # as tensorboard's writer
        file.write(struct.pack("<Q", 3) + b"abc")
    same((open("run.log").read(), "a line\n"), (os.path.getsize("runs/events.out.tfevents.1"), 11))


def images(at):
    try:
        from PIL import Image
    except ImportError:
        return
    Image.fromarray(torch.ones(4, 4).byte().cpu().numpy()).save("image.png")
    same((Image.open("image.png").size, (4, 4)))


def in_threads(at):
    def work():
        (at / "by_thread.txt").write_text("thread")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    same(((at / "by_thread.txt").read_text(), "thread"))


def in_a_fork(at):
    pid = os.fork()
    if not pid:
        Path("by_fork.txt").write_text("fork")
        os.remove("fork.txt")
        os._exit(0)
    os.waitpid(pid, 0)
    same((open("by_fork.txt").read(), "fork"), (os.path.exists("fork.txt"), False))


def imported(at):
    Path("generated.py").write_text("value = 3\n")
    sys.path.insert(0, str(at))
    import generated

    same((generated.value, 3))
    sys.path.remove(str(at))


def elsewhere(at):
    home = Path(os.path.expanduser("~"))
    if os.path.isdir("/dev/shm"):
        Path("/dev/shm", f"writers-{at.parent.name}").write_text("in memory")
        same((Path("/dev/shm", f"writers-{at.parent.name}").read_text(), "in memory"))
    (home / "settings.ini").write_text("changed")
    (home / ".cache" / "program").mkdir(parents=True)
    (home / ".cache" / "program" / "x").write_text("cached")
    same(((home / "settings.ini").read_text(), "changed"), ((home / ".cache" / "program" / "x").read_text(), "cached"))


def by_c(at):
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    for name in (b"by_c.txt", b"keep_c.txt"):
        file = ctypes.c_void_p(libc.fopen(name, b"w"))
        libc.fputs(b"by C", file)
        libc.fclose(file)
    libc.rename(b"c1.txt", b"c2.txt")
    libc.unlink(b"c3.txt")
    same((open("by_c.txt").read(), "by C"), (open("c2.txt").read(), "c1"), (os.path.exists("c3.txt"), False))


def by_children(at):
    subprocess.run("echo child > by_child.txt; echo more >> log.txt; rm child.txt", shell=True, check=True)
    os.system("mkdir by_system")
    same(
        (open("by_child.txt").read(), "child\n"),
        (os.path.exists("child.txt"), False),
        (os.path.isdir("by_system"), True),
    )


PYTHONS = (
    open_modes,
    by_pathlib,
    by_descriptor,
    truncated,
    renamed,
    removed,
    folders,
    links,
    properties,
    by_shutil,
    texts,
    arrays,
    by_mmap,
    databases,
    archives,
    temporaries,
    tensors,
    logs,
    images,
    in_threads,
    in_a_fork,
    imported,
    elsewhere,
)
OTHERS = (by_c, by_children)


def at_exit():
    Path("late.txt").write_text("late")
    os.remove("times")
    same((os.path.exists("late.txt"), True), (os.path.exists("times"), False))
    print("at exit: done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    atexit.register(at_exit)
    done = []
    for writer in PYTHONS + (OTHERS if "all" in sys.argv else ()):
        writer(Path(os.getcwd()))
        done.append(writer.__name__)
    print("done:", len(done))
