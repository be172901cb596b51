"""C2, C3: the report of a measured run: counts, closed-form FLOPs, sums, attribution."""

import _thread
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from mindtorch._ext import context
from mindtorch.engine import semantics
from mindtorch.profile import Profiler
from mindtorch.profile.measure import collect

D, HEADS, LAYERS, V, B, T = 16, 2, 2, 10, 3, 5


def train(Net, steps=1):
    net = Net(D, HEADS, LAYERS, V)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        tokens = torch.randint(0, V, (B, T))
        logits = net(tokens)
        torch.nn.functional.cross_entropy(logits.view(-1, V), tokens.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()


def module(report, path):
    return next(row for row in report["modules"] if row["path"] == path)


def op(report, name):
    return next(row for row in report["ops"] if row["name"] == name)


def matrix_macs(rows, inner, columns):
    return rows * inner * columns


def test_C2_nothing_is_counted_twice(record, Net):
    report, _ = record(lambda: train(Net, 3))
    assert json.loads(json.dumps(report)) == report
    assert report["schema_version"] == 2 and report["mode"] == "measured"


def test_C3_mlp_flops_forward_and_backward_equal_closed_forms(record):
    n, a, b, c = 7, 6, 5, 4

    def program():
        net = torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, c))
        net(torch.randn(n, a)).sum().backward()

    report, _ = record(program)
    forward = n * a * b + n * b * c
    backward = n * a * b + 2 * n * b * c  # the input needs no gradient
    macs = {row["name"]: row["macs"] for row in report["phases"]}
    assert (macs["forward"], macs["backward"]) == (forward, backward)
    assert module(report, "Sequential.0")["macs"] == 2 * n * a * b
    assert module(report, "Sequential.2")["macs"] == 3 * n * b * c
    assert op(report, "aten::mm")["flops"] == 2 * backward
    assert op(report, "aten::addmm")["calls"] == 2


def test_C3_transformer_macs_equal_closed_forms(record, Net):
    with torch.no_grad():
        report, _ = record(lambda: Net(D, HEADS, LAYERS, V)(torch.randint(0, V, (B, T))))
    rows = B * T
    attention = 2 * B * T * T * D
    per_block = {
        "attn.qkv": 3 * rows * D * D,
        "attn.out": rows * D * D,
        "attn": 4 * rows * D * D + attention,
        "up": 4 * rows * D * D,
        "down": 4 * rows * D * D,
    }
    for layer in range(LAYERS):
        for name, macs in per_block.items():
            assert module(report, f"Net.blocks.{layer}.{name}")["macs"] == macs, name
    total = LAYERS * (12 * rows * D * D + attention) + rows * D * V
    assert report["totals"]["macs"] == module(report, "Net")["macs"] == total
    assert report["totals"]["coverage"] == 1.0 and report["uncounted"] == []


def test_C3_ops_without_a_formula_are_listed(record):
    @torch.library.custom_op("mindtorch_test::odd", mutates_args=())
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    with torch.no_grad():
        report, _ = record(lambda: [odd(torch.ones(4)) for _ in range(3)] + [torch.ones(2) * 2])
    assert [(row["name"], row["calls"]) for row in report["uncounted"]] == [("mindtorch_test::odd", 3)]
    assert report["totals"]["counted_ops"] == 1 and report["totals"]["coverage"] == 0.25
    assert any("mindtorch_test::odd" in text for text in report["warnings"])


def test_L12_every_op_of_a_training_step_has_its_module(record, Net):
    _, profiler = record(lambda: train(Net))
    seen: dict[tuple[str, str], set] = {}
    for row in profiler.stages["main"].rows:
        if row[0]:
            name = profiler.collector.sig_ops[row[0]].name
            seen.setdefault((context.phase_name(row[3]), context.module_path(row[1])), set()).add(name)
    for layer in range(LAYERS):
        block = f"Net.blocks.{layer}"
        assert "aten::native_layer_norm_backward" in seen["backward", f"{block}.norm"]
        assert "aten::gelu_backward" in seen["backward", f"{block}.act"]
        for name in ("attn.qkv", "attn.out", "up", "down"):
            assert "aten::addmm" in seen["forward", f"{block}.{name}"]
            assert "aten::mm" in seen["backward", f"{block}.{name}"]
        assert "aten::add" in seen["forward", block]
    # Outside the model: only the loss; in backward its two nodes and the gradient it starts from.
    outside = seen["backward", ""]
    assert "aten::_log_softmax_backward_data" in outside and "aten::mm" not in outside
    assert "aten::_log_softmax" in seen["forward", ""]
    assert all(path == "" for phase, path in seen if phase == "optimizer")


def test_C2_parameters_are_unique_and_phases_and_calls_right(record, Net):
    report, _ = record(lambda: train(Net, 2))
    net = Net(D, HEADS, LAYERS, V)
    count = sum(p.numel() for p in net.parameters())
    assert report["totals"]["params"] == count == module(report, "Net")["params"]
    assert report["model"] == {"name": "Net", "params": count, "param_bytes": 4 * count}
    assert module(report, "Net.embed")["self_params"] == V * D and module(report, "Net.head")["self_params"] == 0
    assert module(report, "Net.blocks.1.up")["calls"] == 2 and module(report, "Net.blocks")["calls"] == 0
    assert module(report, "Net.blocks")["class"] == "ModuleList"
    assert [row["name"] for row in report["phases"]] == ["forward", "backward", "optimizer", "other"]
    assert report["steps"]["count"] == 2
    paths = [row["path"] for row in report["modules"]]
    assert paths[:4] == ["Net", "Net.embed", "Net.blocks", "Net.blocks.0"] and paths[-1] == ""
    assert len(set(paths)) == len(paths)


def test_C2_lines_are_the_users(record):
    def program():
        x = torch.ones(3, 3)
        y = torch.nn.functional.softmax(x, 0)
        return torch.nn.Linear(3, 3)(y).relu()

    first = program.__code__.co_firstlineno
    report, _ = record(program)
    assert {row["file"] for row in report["lines"] if row["calls"]} == {__file__}
    mine = {row["line"] - first: row for row in report["lines"] if row["calls"]}
    assert set(mine) <= {1, 2, 3} and mine[3]["function"] == "program"
    assert mine[3]["source"] == "return torch.nn.Linear(3, 3)(y).relu()"


def test_C2_startup_is_apart_from_the_model(record):
    def program():
        big = torch.nn.Linear(64, 64)  # initialized by 2 random ops: start-up, not model
        with torch.no_grad():
            big(torch.ones(1, 64))

    report, _ = record(program)
    assert report["startup"]["ops"] >= 4 and op(report, "aten::addmm")["calls"] == 1
    assert not [row for row in report["ops"] if row["name"] == "aten::uniform_"]


def test_C2_warmup_and_steps(record, Net):
    report, _ = record(lambda: train(Net, 6), warmup=2, steps=3)
    one, _ = record(lambda: train(Net, 1))
    assert (report["steps"]["count"], report["steps"]["warmup"]) == (5, 2)
    assert op(report, "aten::native_layer_norm")["calls"] == 3 * LAYERS
    assert op(one, "aten::native_layer_norm")["calls"] == LAYERS
    with torch.inference_mode():
        net = torch.nn.Linear(2, 2)
        report, _ = record(lambda: [net(torch.ones(1, 2)) for _ in range(5)], warmup=3)
    assert module(report, "Linear")["calls"] == 2 and report["totals"]["macs"] == 8


def test_C2_program_that_knows_its_own_iterations(check_sums):
    net, x = torch.nn.Linear(64, 64), torch.ones(8, 64)
    with Profiler(warmup=7) as profiler:
        for part, size in enumerate((1, 4)):  # two parts: the second is larger, and warms up twice
            profiler.stage("init")
            x = torch.ones(8 * size, 64)
            for name in (*["warmup"] * (part + 1), "main"):
                profiler.stage(name)
                with torch.no_grad():
                    net(x), net(x)
        profiler.stage("init")
        torch.ones(1 << 20)
    report = profiler.report()
    check_sums(report)
    assert report["totals"]["macs"] == 2 * 64 * 64 * (8 + 32) and report["totals"]["ops"] == sum(
        row["calls"] for row in report["ops"] if row["name"] != "(python)"
    )
    assert next(row["calls"] for row in report["modules"] if row["path"] == "Linear") == 4
    assert report["steps"]["count"] == 5 and report["steps"]["warmup"] == 3
    held = 4 * (64 * 64 + 64 + 32 * 64)
    assert report["totals"]["peak_bytes"] == held + 2 * 4 * 32 * 64  # what is made ready apart does not count
    assert not report["warnings"]


def test_C2_modes_autocast_inference_and_checkpoint(record):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())

    def autocast():
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
            assert net(torch.ones(1, 8)).dtype is torch.bfloat16

    report, _ = record(autocast)
    assert report["totals"]["macs"] == 64 and module(report, "Sequential.0")["ops"] >= 3
    x = torch.ones(4, 8, requires_grad=True)
    report, _ = record(lambda: checkpoint(net, x, use_reentrant=False).sum().backward())
    phases = {row["name"]: row["macs"] for row in report["phases"] if row["macs"]}
    assert phases == {"forward": 256, "backward": 3 * 256}  # the product again, and two gradients


def test_C2_compiled_functions_stay_compiled_and_are_named_in_a_warning(record):
    calls = []

    def backend(graph, inputs):
        calls.append(1)
        return graph.forward

    net = torch.nn.Linear(3, 3)
    compiled = torch.compile(net, backend=backend)
    with torch.no_grad():
        report, _ = record(lambda: compiled(torch.ones(1, 3)))
    assert calls == [1]
    assert any("compiled" in text for text in report["warnings"])
    assert report["unseen"] == [{"what": "compiled function", "count": 1}]
    assert report["startup"]["compile_s"] > 0
    torch._dynamo.reset()


def test_C3_other_threads_are_measured(record):
    net, turn = torch.nn.Linear(2, 2), threading.Lock()  # the times of threads that take turns are the run's

    def work(rows):
        with turn:
            net(torch.ones(rows, 2))

    def program():
        net(torch.ones(1, 2))
        with ThreadPoolExecutor(2, "pool") as pool:
            list(pool.map(work, range(1, 5)))
        thread = threading.Thread(target=lambda: net(torch.ones(1, 2)).sum().backward(), name="trainer-3")
        thread.start()
        thread.join()

    report, profiler = record(program)
    assert op(report, "aten::addmm")["calls"] == 6
    assert report["totals"]["params"] == 6 and report["modules"][0]["calls"] == 6
    assert {row["name"] for row in report["phases"]} >= {"forward", "backward"}
    threads = {row["name"]: row for row in report["threads"]}
    assert set(threads) == {"main", "pool", "trainer"} and 1 <= threads["pool"]["count"] <= 2
    assert sum(row["ops"] for row in threads.values()) == report["totals"]["ops"] == profiler.collector.n_ops - 1
    assert not any("thread" in text for text in report["warnings"])


def test_C2_a_thread_that_waits_for_another_one_does_nothing(record):
    """The sum of all self times is the run's where threads take turns: nothing is counted twice."""
    x = torch.ones(300, 300)

    def program():
        for _ in range(3):
            thread = threading.Thread(target=lambda: [x @ x for _ in range(20)])
            thread.start()
            thread.join()
            x @ x

    report, _ = record(program)
    totals, startup = report["totals"], report["startup"]
    assert op(report, "aten::mm")["calls"] == 63
    accounted = totals["time_s"] + totals["overhead_s"] + startup["import_s"] + startup["init_s"]
    assert accounted <= totals["wall_s"] * 1.000001
    assert sum(row["self_s"] for row in report["ops"]) == pytest.approx(totals["time_s"])


def test_C2_what_came_before_the_first_op_is_start_up_also_where_that_is_in_a_thread(record):
    begun = time.perf_counter_ns() - 5_000_000_000

    def program():
        thread = threading.Thread(target=lambda: torch.ones(2) + 1)
        thread.start()
        thread.join()

    report, _ = record(program, begun_ns=begun)
    assert report["startup"]["import_s"] >= 5 and report["totals"]["ops"] == 2
    assert report["totals"]["time_s"] < report["totals"]["wall_s"] - 5


def test_C3_raw_threads_are_measured(record):
    net, done = torch.nn.Linear(2, 2), threading.Event()
    kept = _thread.start_new_thread, _thread.start_new

    def program():
        net(torch.ones(1, 2))
        _thread.start_new_thread(lambda rows, **more: (net(torch.ones(rows, 2)), more["last"].set()), (3,),
                                 {"last": done})  # fmt: skip
        assert done.wait(60)
        with pytest.raises(TypeError):
            _thread.start_new_thread(3, ())

    report, _ = record(program)
    assert op(report, "aten::addmm")["calls"] == 2 and report["unseen"] == []
    assert {row["name"]: row["count"] for row in report["threads"]} == {"main": 1, "_thread": 1}
    assert (_thread.start_new_thread, _thread.start_new) == kept


def test_C2_threads_from_before_are_not_counted_and_named(record):
    net, go, done = torch.nn.Linear(2, 2), threading.Event(), threading.Event()
    threading.Thread(target=lambda: (go.wait(60), net(torch.ones(1, 2)), done.set()), daemon=True).start()

    def program():
        net(torch.ones(1, 2))
        go.set()
        assert done.wait(60)

    report, _ = record(program)
    assert op(report, "aten::addmm")["calls"] == 1
    assert any("started before the profile" in text for text in report["warnings"])


def test_C2_a_thread_still_running_at_the_end_is_no_harm(record):
    go, stopped = threading.Event(), threading.Event()

    def loop():
        torch.ones(2) + 1
        go.set()
        assert stopped.wait(60)
        torch.ones(2) + 1

    thread = threading.Thread(target=loop, daemon=True, name="daemon")

    def program():
        thread.start()
        assert go.wait(60)

    report, profiler = record(program)
    assert {row["name"]: row["ops"] for row in report["threads"]} == {"daemon": 2}
    stopped.set()
    thread.join()
    assert profiler.collector.n_ops == 2 and threading.Thread._bootstrap_inner.__module__ == "threading"


def test_C2_result_is_that_of_the_plain_program(record, Net):
    def run():
        torch.manual_seed(1)
        net = Net(D, HEADS, LAYERS, V)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        tokens = torch.randint(0, V, (B, T))
        net(tokens).sum().backward()
        optimizer.step()
        return [p.detach().clone() for p in net.parameters()]

    plain, profiled = run(), []
    record(lambda: profiled.extend(run()))
    assert all(torch.equal(a, b) for a, b in zip(plain, profiled))


def test_C2_interrupted_and_failing_programs_are_reported(Net, check_sums):
    installed = semantics.is_installed()  # an earlier test may have made lazy tensors
    for error, interrupted in ((KeyboardInterrupt, True), (ValueError, False)):
        with pytest.raises(error), Profiler() as profiler:
            train(Net)
            raise error
        report = profiler.report(exit_code=1)
        assert report["interrupted"] is interrupted and report["exit_code"] == 1
        assert module(report, "Net")["calls"] == 1
        check_sums(report)
    with Profiler() as profiler, pytest.raises(RuntimeError):
        torch.ones(2, 3) @ torch.ones(2, 3)
    check_sums(profiler.report())
    assert semantics.is_installed() == installed


def test_C2_an_empty_program_and_one_without_modules(record):
    report, _ = record(lambda: None)
    assert report["totals"]["ops"] == 0 and report["model"] is None
    report, _ = record(lambda: torch.ones(3) + 1)
    assert report["totals"]["ops"] == 2


def test_C2_a_model_called_before_is_not_the_profiles(record):
    class Earlier(torch.nn.Linear):
        pass

    class Model(torch.nn.Linear):
        pass

    earlier, model = Earlier(100, 100), Model(2, 1)
    semantics.install()  # modules are followed for other reasons, too
    try:
        earlier(torch.ones(1, 100))
        reports = [record(run)[0] for run in (lambda: torch.ones(3) + 1, lambda: model(torch.ones(1, 2)),
                                              lambda: earlier(torch.ones(1, 100)))]  # fmt: skip
    finally:
        semantics.uninstall()
    assert reports[0]["model"] is None and reports[0]["totals"]["params"] == 0
    assert reports[1]["model"] == {"name": "Model", "params": 3, "param_bytes": 12}
    assert reports[2]["model"]["params"] == reports[2]["totals"]["params"] == 10_100


def test_C2_modules_that_learn_their_shapes(record):
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    report, _ = record(lambda: model(torch.ones(3, 4)))
    assert report["model"] == {"name": "Sequential", "params": 10, "param_bytes": 40}
    assert op(report, "aten::addmm")["calls"] == 1


def test_C2_torch_is_restored(record):
    before = torch.nn.Module.__call__, torch.autograd._engine_run_backward, torch._C._len_torch_dispatch_stack()
    record(lambda: torch.nn.Linear(1, 1)(torch.ones(1)))
    after = torch.nn.Module.__call__, torch.autograd._engine_run_backward, torch._C._len_torch_dispatch_stack()
    assert before == after
    profiler = Profiler()
    with profiler:
        pass
    with pytest.raises(RuntimeError, match="expected a new profiler"), profiler:
        pass
    with pytest.raises(ValueError, match="steps >= 1"):
        Profiler(steps=0)


def test_C2_op_written_in_python_counts_once(record):
    held = [torch.nn.Linear(2, 2)]

    @torch.library.custom_op("mindtorch_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return held[0](x) + held[0](x)

    report, _ = record(lambda: twice(torch.ones(1, 2)))
    held.clear()  # the operator stays, and later tests count the models that are alive
    assert op(report, "mindtorch_test::twice")["calls"] == 1


def test_C3_element_wise_flops_are_asked_for_once_per_shape_of_the_result(record, monkeypatch):
    asked = []

    def count(func, args, kwargs, out):
        asked.append((str(func), getattr(out, "shape", None)))
        return original(func, args, kwargs, out)

    original = collect.count
    monkeypatch.setattr(collect, "count", count)

    def program():
        asked.clear()  # what measuring our own cost has run
        row, column, square = torch.ones(1, 4), torch.ones(4, 1), torch.ones(4, 4)
        for _ in range(2):
            row + column, square + square, square + 1, torch.add(row, row, alpha=2), column * column

    report, _ = record(program)
    assert asked == [("aten.add.Tensor", (4, 4)), ("aten.add.Tensor", (1, 4)), ("aten.mul.Tensor", (4, 1))]
    flops = {row["name"]: row["flops"] for row in report["ops"]}
    assert flops["aten::add"] == 2 * (3 * 16 + 4) and flops["aten::mul"] == 2 * 4


def test_C6_imports_in_the_middle_of_a_run_are_not_the_models_time(record, tmp_path, monkeypatch):
    (tmp_path / "slow_to_load.py").write_text("import time\nimport slow_inside\ntime.sleep(0.3)\n")
    (tmp_path / "slow_inside.py").write_text("import time\ntime.sleep(0.2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    meta_path = list(sys.meta_path)

    def run():
        net = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(3):
            net(torch.ones(2, 2)).sum().backward()
            if step == 1:
                import slow_to_load  # noqa: F401
            optimizer.step()

    report, profiler = record(run)
    assert report["startup"]["import_s"] >= 0.5 and report["totals"]["time_s"] < report["totals"]["wall_s"] - 0.5
    (first, second, _), steps = profiler.marks, profiler.recording().step_ns
    assert len(steps) == 3 and second - first - steps[1] >= 500_000_000  # nor its step's
    assert sys.modules["slow_to_load"].__spec__.loader.get_source("slow_to_load").startswith("import time")
    assert sys.meta_path == meta_path
    for name in ("slow_to_load", "slow_inside"):
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_C3_products_of_the_same_sizes_count_what_each_stores() -> None:
    dense, x = torch.eye(6), torch.ones(6, 5)
    few, more = dense.clone(), torch.ones(6, 6)
    few[1:] = 0
    flops = []
    for matrix in (dense, few.to_sparse_csr(), more.to_sparse_csr(), few.to_sparse_csc(), dense):
        with Profiler() as profiler:
            matrix @ x
        flops.append(profiler.report()["totals"]["flops"])
    with Profiler() as profiler:
        for matrix in (dense, few.to_sparse_csr(), more.to_sparse_csr(), dense):
            matrix @ x
    assert flops == [360, 10, 360, 10, 360] and profiler.report()["totals"]["flops"] == 360 + 10 + 360 + 360
