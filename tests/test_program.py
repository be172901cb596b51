"""SPEC C1 (what can be run, and how) and C8 (the script's own errors and exit codes)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import traceback

import pytest
import torch

import mindtorch
from mindtorch.base.errors import UsageError
from mindtorch.program.input_option import parse_input
from mindtorch.program.program import Program, split_argument
from mindtorch.program.workload import Request


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # in the checkout, "python -c" would import the source folder


RUN = """
from mindtorch.program.program import Program
outcome = Program.parse({!r}).run()
outcome.show()
outcome.show()  # nothing the second time
raise SystemExit(outcome.exit_code)
"""


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 2)
    def forward(self, x, mask=None):
        return self.layer(x)

class Needy(nn.Module):
    def __init__(self, width, depth):
        super().__init__()

def build():
    return Net()

def ids():
    return nn.Embedding(10, 3)

def number():
    return 3

def broken():
    raise KeyError("inside build")

def sized(width, depth=2):
    return Net(width)

ready = Net()
text = "hello"

if __name__ == "__main__":
    raise SystemExit("ran as a script")
"""


# -- scripts ---------------------------------------------------------------------------------------------------------


def test_C1_script_sees_what_python_gives_it(write, tmp_path, forked):
    source = """
import json, sys, builtins
print(json.dumps({
    "argv": sys.argv, "path0": sys.path[0], "file": __file__, "name": __name__, "package": __package__,
    "doc": __doc__, "builtins": __builtins__ is builtins, "spec": __spec__ is None,
    "main": sys.modules["__main__"].__dict__ is globals(), "loader": type(__loader__).__name__,
    "names": sorted(n for n in globals() if n != "__cached__"),
}))
"""
    path = write("show.py", "'''The doc.'''" + source)
    plain = subprocess.run([sys.executable, path, "--lr", "0.1", "--help"], capture_output=True, text=True, check=True)
    code = f"from mindtorch.program.program import Program; Program.parse({path!r}, ['--lr', '0.1', '--help']).run()"
    ours = forked("-c", code)
    assert json.loads(ours.stdout) == json.loads(plain.stdout)


def test_C1_script_through_a_link_imports_its_neighbours(write, tmp_path):
    (tmp_path / "real").mkdir()
    write("real/neighbour_of_script.py", "value = 42")
    write("real/script.py", "from neighbour_of_script import value\nimport sys\nsys.exit(value)")
    link = tmp_path / "link.py"
    link.symlink_to(tmp_path / "real" / "script.py")
    assert Program.parse(str(link)).run().exit_code == 42


def test_C1_process_is_put_back(write):
    path = write(
        "rude.py", "import sys\nsys.argv[:] = []\nsys.path.insert(0, '/nowhere')\nsys.stdout = None\nsys.path=[]"
    )
    before = sys.argv, list(sys.argv), list(sys.path), sys.modules["__main__"], sys.stdout, sys.path
    assert Program.parse(path, ["a"]).run().exit_code == 0
    assert (sys.argv, list(sys.argv), list(sys.path), sys.modules["__main__"], sys.stdout, sys.path) == before
    assert sys.path is before[-1]


@pytest.mark.parametrize(
    ("end", "code", "stderr"),
    [("pass", 0, ""), ("sys.exit()", 0, ""), ("sys.exit(0)", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit(True)", 1, ""),
     ("sys.exit('no luck')", 1, "no luck\n"), ("raise SystemExit([1])", 1, "[1]\n"), ("sys.exit(300)", 300, "")],
)  # fmt: skip
def test_C8_exit_codes(write, capsys, end, code, stderr):
    outcome = Program.parse(write("end.py", f"import sys\n{end}\n")).run()
    outcome.show()
    assert outcome.exit_code == code
    assert capsys.readouterr().err == stderr


def test_C8_traceback_is_the_one_python_prints(write, forked):
    path = write("fail.py", "def f(n):\n    try:\n        return 1 / n\n    except Exception as e:\n"
                 "        raise ValueError('bad') from e\n\nf(0)\n")  # fmt: skip
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True)
    ours = forked("-c", RUN.format(path))
    assert "ValueError: bad" in plain.stderr
    assert (ours.returncode, ours.stderr, ours.stdout) == (plain.returncode, plain.stderr, plain.stdout)


def test_C8_syntax_error_as_python_shows_it(write, forked):
    path = write("broken.py", "x = 1\nif x\n    pass\n")
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True)
    ours = forked("-c", RUN.format(path))
    assert "SyntaxError" in ours.stderr and ours.returncode == 1
    assert ours.stderr == plain.stderr


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\x00\x00", b"caf\xe9 = 1\n", b"x = '\x00'\n"])
def test_C8_not_python(tmp_path, content, capsys):
    path = tmp_path / "binary.py"
    path.write_bytes(content)
    outcome = Program.parse(str(path)).run()
    outcome.show()
    assert outcome.exit_code == 1
    assert isinstance(outcome.error, (SyntaxError, ValueError))
    assert "mindtorch" not in capsys.readouterr().err


def test_C8_interrupt(write):
    outcome = Program.parse(write("stop.py", "raise KeyboardInterrupt")).run()
    assert outcome.exit_code == 130 and outcome.interrupted


def test_C8_tool_frames_inside_the_traceback_are_left_out(write):
    path = write("shape.py", "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)\n")
    from torch.utils._python_dispatch import TorchDispatchMode

    source = (
        "from torch.utils._python_dispatch import TorchDispatchMode\n"
        "class Mode(TorchDispatchMode):\n"
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None):\n"
        "        return func(*args, **(kwargs or {}))\n"
    )
    import mindtorch.program.program

    names: dict = {}
    exec(compile(source, os.path.join(os.path.dirname(mindtorch.program.program.__file__), "fake.py"), "exec"), names)
    assert issubclass(names["Mode"], TorchDispatchMode)
    with names["Mode"]():
        outcome = Program.parse(path).run()
    frames = traceback.extract_tb(outcome.error.__traceback__)
    assert [os.path.basename(f.filename) for f in frames] == ["shape.py"]


def test_C1_threads_are_waited_for(write):
    path = write(
        "threads.py",
        "import threading, time\ndone = []\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), done.append(1))).start()\n",
    )
    program = Program.parse(path)
    before = threading.active_count()
    assert program.run().exit_code == 0
    assert program.namespace["done"] == [1]
    assert threading.active_count() == before


def test_C1_forked_child_ends_in_the_script(write, after_a_step):
    path = write("fork.py", "import os, sys\nif os.fork() == 0:\n    print('child')\n    sys.exit(7)\n"
                 "code = os.waitstatus_to_exitcode(os.wait()[1])\nprint('parent saw', code)\n")  # fmt: skip
    code = f"from mindtorch.program.program import Program; Program.parse({path!r}).run(); print('report')"
    done = after_a_step(code)
    assert sorted(done.stdout.split("\n")) == ["", "child", "parent saw 7", "report"]


def test_C1_multiprocessing_spawn_finds_the_script(write, after_a_step):
    path = write(
        "spawned.py",
        "import multiprocessing as mp\ndef work(x):\n    return x * x\nif __name__ == '__main__':\n"
        "    with mp.get_context('spawn').Pool(1) as pool:\n        assert pool.map(work, [2, 3]) == [4, 9]\n",
    )
    after_a_step(RUN.format(path))


def test_C1_exit_handlers_still_see_the_globals(write, after_a_step):
    path = write("late.py", "import atexit\nword = 'kept'\natexit.register(lambda: print(word))\n")
    code = f"from mindtorch.program.program import Program; p = Program.parse({path!r}); p.run()"
    assert after_a_step(code).stdout == "kept\n"


# -- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["build", "Net", "ready"])
def test_C1_model_in_a_file(write, name):
    program = Program.parse(f"{write('nets.py', MODEL)}:{name}", inputs=["3x4"])
    outcome = program.run(repeat=2)
    assert outcome.exit_code == 0 and outcome.error is None
    assert outcome.result.shape == (3, 2)
    assert not outcome.result.requires_grad and not program.model.training
    assert type(program.model).__name__ == "Net"


@pytest.mark.parametrize("device", ["meta", "remote_accelerator:0"])
def test_C1_inputs_are_made_where_the_model_is(write, device):
    code = f"import mindtorch, torch\ndef build():\n    return torch.nn.Linear(4, 2, device='{device}')\n"
    path = write("there.py", code)
    outcome = Program.parse(f"{path}:build", inputs=["3x4"]).run()
    assert outcome.error is None and str(outcome.result.device) == device
    assert mindtorch.stats()["ops_pending"] == 0, "what was recorded ran before the call counts as over"


def test_C1_named_and_integer_inputs(write):
    path = write("nets.py", MODEL)
    assert Program.parse(f"{path}:ready", inputs=["x=1x4", "mask=1x4:bool"]).run().exit_code == 0
    assert Program.parse(f"{path}:ids", inputs=["1x128:int64<10"]).run().result.shape == (1, 128, 3)
    assert Program.parse(f"{path}:ids", inputs=["1x128:int64"]).run().result.shape == (1, 128, 3)


@pytest.mark.parametrize(
    ("name", "inputs", "words"),
    [("missing", [], ["defines no 'missing'", "build", "Net", "ready"]),
     ("text", [], ["is a str", "Net"]),
     ("number", [], ["returned an int"]),
     ("Needy", [], ["width, depth", "without parameters"]),
     ("sized", [], ["width"]),
     ("build", [], ["forward(x, mask=None)", "no --input", "--input [NAME=]SHAPE"]),
     ("build", ["1x4", "1x4", "1x4"], ["too many", "1x4 (float32), 1x4 (float32)"]),
     ("build", ["y=1x4"], ["y=1x4", "forward(x"]),
     ("", [], ["expected the name of a model after the colon", "build"])],
)  # fmt: skip
def test_C1_bad_model_requests(write, name, inputs, words):
    with pytest.raises(UsageError) as caught:
        Program.parse(f"{write('nets.py', MODEL)}:{name}", inputs=inputs).run()
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_C1_model_errors_are_the_models_own(write):
    path = write("nets.py", MODEL)
    outcome = Program.parse(f"{path}:broken").run()
    assert outcome.exit_code == 1 and isinstance(outcome.error, KeyError)
    assert [f.name for f in traceback.extract_tb(outcome.error.__traceback__)] == ["broken"]
    program = Program.parse(f"{path}:build", inputs=["3x5"])
    outcome = program.run()
    assert isinstance(outcome.error, RuntimeError) and "shapes cannot be multiplied" in str(outcome.error)
    assert program.describe_inputs() == "3x5 (float32)"


@pytest.mark.parametrize(
    ("target", "inputs", "words"),
    [("nowhere.py", [], ["does not exist"]), ("nowhere.py:build", [], ["nowhere.py does not exist"]),
     (".", [], ["is a directory"]), ("./:x", [], ["is a directory"]), ("nets.py", ["1x3"], ["--input is for a model"])],
)  # fmt: skip
def test_C1_bad_targets(write, tmp_path, monkeypatch, target, inputs, words):
    write("nets.py", MODEL)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        Program.parse(target, inputs=inputs)
    for word in words:
        assert word in str(caught.value)


def test_C1_unreadable_file(write, monkeypatch):
    path = write("secret.py", "pass")
    monkeypatch.setattr(os, "access", lambda *a: False)  # root can read everything
    with pytest.raises(UsageError, match="permission"):
        Program.parse(path)


def test_C1_target_forms(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a:b.py", "pass")
    assert split_argument("a:b.py") == ("script", "a:b.py", "")
    assert split_argument("dir/m.py:Outer.build") == ("model", "dir/m.py", "Outer.build")
    assert split_argument("config.json") == ("config", "config.json", "")
    assert split_argument("train") == ("script", "train", "")


def test_C1_model_file_offers_candidates(write):
    program = Program.parse(write("nets.py", MODEL))
    assert program.candidates() == ["Net", "Needy", "build", "ids", "number", "broken"]


def test_C1_file_named_like_a_library_does_not_replace_it(write):
    import json as real

    path = write("json.py", "from torch import nn\nnet = nn.Identity()")
    assert Program.parse(f"{path}:net", inputs=["1"]).run().exit_code == 0
    assert sys.modules["json"] is real


# -- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "name", "bound"),
    [("1x3x224x224", (1, 3, 224, 224), "float32", None, None), ("1x128:int64", (1, 128), "int64", None, None),
     ("ids=1x128:int64<50257", (1, 128), "int64", "ids", 50257), ("1x128:int64:7", (1, 128), "int64", None, 7),
     ("4<9", (4,), "int64", None, 9), ("scalar", (), "float32", None, None), ("0x3", (0, 3), "float32", None, None),
     ("m=2:bool", (2,), "bool", "m", None), ("2x2:torch.bfloat16", (2, 2), "bfloat16", None, None)],
)  # fmt: skip
def test_C1_input_forms(text, shape, dtype, name, bound):
    spec = parse_input(text)
    assert (spec.shape, spec.dtype, spec.name, spec.bound) == (shape, dtype, name, bound)
    value = spec.build()
    assert tuple(value.shape) == shape and value.dtype == getattr(torch, dtype)
    if bound is not None:
        assert bool((value < bound).all()) and bool((value >= 0).all())


@pytest.mark.parametrize("dtype", ["float16", "half", "double", "complex64", "uint8", "int8", "long", "uint16", "bool"])
def test_C1_input_every_kind_of_dtype(dtype):
    assert parse_input(f"2x3:{dtype}").build().dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    "text",
    ["", "x", "1x", "x3", "1xx3", "-1x3", "1.5x2", "1,3,224", "1x3:flot32", "1x3:", "1x3<5:int64", "1x3:float32<5",
     "1x3:int64<0", "1x3:int64<-1", "1x3:int64<a", "=1x3", "a b=1x3", "a=b=1x3", "1 x 3", "\u0661x3", "1x3:int64<",
     "1X3"],
)  # fmt: skip
def test_C1_input_refused_with_the_grammar(text):
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    message = str(caught.value)
    assert repr(text) in message and "[NAME=]SHAPE[:DTYPE]" in message and "\n" not in message


def test_C1_input_too_large_is_one_line(write):
    path = write("nets.py", MODEL)
    with pytest.raises(UsageError) as caught:
        Program.parse(f"{path}:build", inputs=["1000000x1000000x1000000"]).run()
    assert "\n" not in str(caught.value) and "1000000x1000000x1000000" in str(caught.value)


def test_C1_same_input_twice(write):
    with pytest.raises(UsageError, match="twice"):
        Program.parse(f"{write('nets.py', MODEL)}:build", inputs=["x=1", "x=2"])


# -- configurations --------------------------------------------------------------------------------------------------


def test_C1_config_json(write):
    pytest.importorskip("transformers")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 8, "n_head": 2,
              "vocab_size": 50, "n_positions": 128}  # fmt: skip
    program = Program.parse(write("config.json", json.dumps(config)))
    outcome = program.run()
    outcome.show()
    assert outcome.exit_code == 0
    assert type(program.model).__name__ == "GPT2LMHeadModel"
    assert outcome.result.logits.shape == (1, 128, 50)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model_type": "nonesuch"}', '{"a": ', '{"model_type": 3}'])
def test_C1_config_refused(write, content):
    pytest.importorskip("transformers")
    with pytest.raises(UsageError) as caught:
        Program.parse(write("config.json", content)).run()
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_C1_config_too_large_for_this_machine(write):
    pytest.importorskip("transformers")
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 262144, "n_head": 2, "vocab_size": 50}
    with pytest.raises(UsageError, match="GiB"):
        Program.parse(write("config.json", json.dumps(config))).run()


PACKAGE = {
    "pkg/__init__.py": "print('package')",
    "pkg/helper.py": "name = 'helped'",
    "pkg/train.py": """
        import pickle, sys
        from .helper import name
        class Thing: pass
        print(__name__, __package__, __spec__.name, sys.argv, __file__, sys.path[0], name)
        print(__loader__ is __spec__.loader)
        print(pickle.loads(pickle.dumps(Thing())).__class__ is Thing)
        raise SystemExit(3 if '--fail' in sys.argv else 0)
    """,
    "pkg/__main__.py": "import sys; from .helper import name; print(__name__, __package__, sys.argv, name)",
    "pkg/wrong.py": "import not_there",
    "pkg/empty/__init__.py": "",
    "folder/__main__.py": """
        import side, sys
        print(__name__, repr(__package__), sys.argv, sys.path[0], __file__, __spec__.name)
    """,
    "folder/side.py": "",
}


@pytest.fixture
def package(tmp_path):
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


@pytest.mark.sample(2)
@pytest.mark.parametrize("words", [["-m", "pkg.train", "--lr", "1"], ["-m", "pkg.train", "--fail"], ["-m", "pkg", "a"],
                                   ["folder", "b"], ["-m", "pkg.wrong"]])  # fmt: skip
def test_C1_modules_and_folders_run_as_python_runs_them(package, words, forked):
    plain = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    as_module, rest = words[0] == "-m", words[words[0] == "-m" :]
    program = f"Program.parse({rest[0]!r}, {rest[1:]!r}, as_module={as_module})"
    ours = forked("-c", RUN.replace("Program.parse({!r})", program))
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)
    assert ours.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


@pytest.mark.parametrize(("name", "message"), [
    ("pkg.nope", "no module named pkg.nope"), ("nope.nope", "no module named nope"),
    ("pkg.empty", "a package without a __main__ module"), ("pkg/train.py", "expected the dotted name of a module"),
    ("sys", "there is no Python code in"),
])  # fmt: skip
def test_C1_a_module_that_cannot_be_run_is_refused(package, monkeypatch, name, message):
    monkeypatch.syspath_prepend(str(package))
    with pytest.raises(UsageError, match=message):
        Program.parse(name, as_module=True).run()
    for more in ({"inputs": ["1x3"]}, {"request": Request(seq=3)}):
        with pytest.raises(UsageError, match=r"(?s)model.*module"):
            Program.parse("pkg.train", as_module=True, **more)
    sys.modules.pop("pkg", None)
    sys.modules.pop("pkg.empty", None)


def test_C1_a_folder_without_main_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"directory without a __main__.py; expected .*-m pkg.train"):
        Program.parse(str(tmp_path))
