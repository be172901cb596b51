"""C1: programs that trace or compile run under a profile as without it."""

import textwrap
from contextlib import nullcontext

import torch
from torch import nn

import mindtorch
from mindtorch.profile import Profiler


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear.forward(x) * 2 + 1


def test_C1_what_torch_jit_traces_runs():
    net, x = Scaled(), torch.ones(2, 4)
    with Profiler(whole=True) as profiler:
        traced = torch.jit.trace(net, x)
        again = torch.jit.trace_module(net, {"forward": x})
        found = traced(x), traced.forward(x), again(x)
    assert all(torch.equal(each, net(x)) for each in found)
    assert "mul" in str(traced.graph)
    report = profiler.report()
    assert report["startup"]["compile_s"] > 0
    # What is traced is compiled, not measured; what is called then is measured.
    assert sum(row["calls"] for row in report["ops"] if row["name"] == "aten::addmm") == 3


def test_C1_a_compiled_model_that_is_called_by_name_runs(after_torch):
    """Dynamo compiled our own Python code, which finds out where the program is, and failed."""
    program = """
        import torch
        from mindtorch.profile import Profiler

        class Doubles(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(4, 4)

            def forward(self, x):
                return self.linear.forward(x) * 2

        def both(net, x):
            torch._dynamo.graph_break()
            return net(x) + net.forward(x)

        x, net = torch.ones(2, 4), Doubles()
        with Profiler(whole=True) as profiler, torch.no_grad():
            compiled = torch.compile(net, backend="eager")
            assert torch.equal(compiled(x), net.linear(x) * 2)
            assert torch.equal(compiled.forward(x), net.linear(x) * 2)
            torch.compile(both, backend="eager")(Doubles(), x)
        assert profiler.compiled < 12, profiler.compiled
    """
    after_torch(textwrap.dedent(program))


def test_L10_what_is_traced_within_a_capture_runs():
    """The tracer failed through the capture's mode, within a profile or not."""
    net, x, before = Scaled(), torch.ones(2, 4), (torch.jit.trace_module, torch.jit._trace._trace_impl)
    for outer in (nullcontext(), Profiler(whole=True)):
        with outer, mindtorch.capture() as graph:
            traced = torch.jit.trace(net, x)
            assert torch.equal(traced(x), net(x))
        assert [node.op for node in graph.nodes].count("aten::addmm") == 2  # the calls, not what was traced
    assert (torch.jit.trace_module, torch.jit._trace._trace_impl) == before
