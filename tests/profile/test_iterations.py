"""C2: a step is an iteration of the program's own loop, and every model has its own row."""

import functools
import gc
import time

import pytest
import torch

from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.measure.iterations import Iterations

N = 4


@pytest.fixture(autouse=True)
def nothing_left():
    """What was estimated leaves cycles; later tests count the models that are alive."""
    yield
    gc.collect()


class Part(torch.nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.inner = torch.nn.Linear(d, d)

    def forward(self, x):
        return self.inner(x).relu()


def gan(rounds, critic=1, inner=False):
    """The loop of a GAN; of WGAN's, the critic steps more often, in an inner loop or because others are left out."""
    generator, judge = torch.nn.Sequential(Part()), torch.nn.Sequential(Part())
    of_generator = torch.optim.SGD(generator.parameters(), 0.1)
    of_judge = torch.optim.SGD(judge.parameters(), 0.1)
    for _ in range(rounds):
        for _ in range(critic):
            of_judge.zero_grad()
            with torch.no_grad():
                made = generator(torch.ones(2, 4))
            (judge(torch.ones(2, 4)).sum() - judge(made).sum()).backward()
            of_judge.step()
        of_generator.zero_grad()
        judge(generator(torch.ones(2, 4))).sum().backward()
        of_generator.step()


def accumulating():
    net = Part()
    optimizer = torch.optim.Adam(net.parameters())
    for i in range(4 * N):
        net(torch.ones(2, 4)).sum().backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def distilling():
    teacher, student = Part(), Part()
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    for _ in range(N):
        with torch.no_grad():
            wanted = teacher(torch.ones(2, 4))
        (student(torch.ones(2, 4)) - wanted).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        for _ in range(7):
            student(torch.ones(2, 4))


def two_kinds_of_parameters():
    net = Part()
    matrix, others = torch.optim.SGD([net.inner.weight], 0.1), torch.optim.Adam([net.inner.bias])
    for _ in range(N):
        net(torch.ones(2, 4)).sum().backward()
        matrix.step()
        others.step()


def closures():
    net = Part()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(N):
        optimizer.step(closure)


def one_after_the_other():
    for _ in range(2):
        net = Part()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(N // 2):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()


def encoding():
    encoder, decoder = Part(), Part()
    with torch.inference_mode():
        for _ in range(N):
            decoder(encoder(torch.ones(2, 4)))


@pytest.mark.parametrize("program", [lambda: gan(N), accumulating, distilling, two_kinds_of_parameters, closures,
                                     one_after_the_other, encoding, lambda: gan(2, 2)])  # fmt: skip
def test_C2_a_step_is_an_iteration_of_the_loop(record, program):
    report, _ = record(program)
    assert report["steps"]["count"] == N
    with Estimator() as estimator:
        program()
    assert estimator.report()["steps"]["count"] == N


@pytest.mark.parametrize("warmup", [0, 1, 2])
@pytest.mark.parametrize("steps", [None, 1, 2])
def test_C2_warmup_and_steps_are_whole_iterations_also_with_two_optimizers(record, warmup, steps):
    report, _ = record(lambda: gan(N), warmup=warmup, steps=steps)
    measured = N - warmup if steps is None else steps
    assert report["steps"]["count"] == warmup + measured and report["steps"]["warmup"] == warmup
    calls = {row["path"]: row["calls"] for row in report["modules"]}
    judge, generator = ("Sequential #2", "Sequential")
    assert (calls[judge], calls[generator]) == (3 * measured, 2 * measured)
    with Estimator(warmup=warmup, steps=steps) as estimator:
        gan(N)
    sized = estimator.report()
    assert {row["path"]: row["calls"] for row in sized["modules"]} == calls
    assert sized["totals"]["flops"] == report["totals"]["flops"] > 0


def test_C2_teacher_and_student_have_rows_of_their_own(record):
    report, _ = record(distilling)
    rows = {row["path"]: row for row in report["modules"]}
    assert [path for path, row in rows.items() if not row["depth"]] == ["Part", "Part #2", ""]
    assert rows["Part"]["params"] == rows["Part #2"]["params"] == 20
    assert rows["Part"]["calls"] == N and rows["Part #2"]["calls"] == N + 7
    assert rows["Part #2.inner"]["flops"] > rows["Part.inner"]["flops"] == N * 2 * 2 * 16
    assert report["model"] == {"name": "Part", "params": 20, "param_bytes": 80} and report["totals"]["params"] == 40


def test_C2_models_that_come_one_after_the_other_are_told_apart_up_to_a_number(record):
    report, _ = record(one_after_the_other)
    assert [row["path"] for row in report["modules"] if row["calls"]] == [
        "Part",
        "Part.inner",
        "Part #2",
        "Part #2.inner",
    ]
    with torch.no_grad():
        report, _ = record(lambda: [Part(i + 1)(torch.ones(1, i + 1)) for i in range(40)])
        names = [row["path"] for row in report["modules"] if not row["depth"]]
        assert names == ["Part", *(f"Part #{i}" for i in range(2, 17)), ""]
        assert sum(row["calls"] for row in report["modules"] if not row["depth"]) == 40
        report, _ = record(lambda: [torch.nn.ReLU()(torch.ones(2)) for _ in range(40)])  # nothing to tell apart
    assert [row["path"] for row in report["modules"]] == ["ReLU", ""] and report["modules"][0]["calls"] == 40


def test_C2_modules_are_in_the_order_of_the_profile_and_numbers_are_its_own(record):
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x, backwards):
            return self.first(self.second(x)) if backwards else self.second(self.first(x))

    held, x = [Both(), Both()], torch.ones(1, 2)
    with torch.no_grad():
        for net, backwards, expected in (
            (held[0], False, ["first", "second"]),
            (held[1], True, ["second", "first"]),
            (held[0], True, ["second", "first"]),
        ):
            report, _ = record(lambda net=net, backwards=backwards: net(x, backwards))
            paths = [row["path"] for row in report["modules"]]
            assert paths == ["Both", *(f"Both.{name}" for name in expected), ""]


def test_C2_a_profile_that_begins_between_forward_and_backward_names_the_model():
    net = Part()
    loss = net(torch.ones(2, 4)).sum()
    from mindtorch.engine import semantics

    semantics.install()  # it knows the forward pass
    try:
        loss = net(torch.ones(2, 4)).sum()
        with Profiler() as profiler:
            loss.backward()
    finally:
        semantics.uninstall()
    assert "Part.inner" in {row["path"] for row in profiler.report()["modules"]}


def test_C2_ends_of_iterations():
    loop = Iterations()
    for at, (kind, who) in enumerate([("begin", 1), ("end", 1), ("begin", 2), ("end", 2)] * 3):
        loop.step_begins(who) if kind == "begin" else loop.step_ends(who, at)
    loop.finish(99)
    assert loop.ends == [3, 7, 11] and not loop.tentative
    loop = Iterations()
    assert [loop.calls(1, 10), loop.calls(2, 11), loop.calls(2, 12)] == [False, False, True]
    assert loop.trains() and not loop.trains() and loop.ends == []


def test_C2_the_first_iteration_begins_after_the_rounds_of_models_before_training() -> None:
    loop = Iterations()
    for at in (10, 20, 30):
        loop.calls(1, at)
    assert loop.trains() and (loop.ends, loop.began) == ([], 30)
    loop.step_ends(1, 40)
    assert (loop.ends, loop.began) == ([40], 30), "from the last of them on"
    loop = Iterations()
    assert not loop.calls(1, 10) and loop.trains() and loop.began == 0, "a teacher that is called once belongs to it"


def test_C2_what_a_model_makes_before_training_is_no_part_of_the_first_iteration() -> None:
    teacher, net = Part(), Part()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Profiler() as profiler:
        with torch.no_grad():
            for _ in range(3):
                time.sleep(0.2)
                teacher(torch.ones(2, 4))
        for _ in range(4):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    report = profiler.report()
    assert report["steps"]["count"] == 4
    assert report["steps"]["first_s"] + 0.4 < report["totals"]["time_s"], "two of the sleeps are in no iteration"


@pytest.mark.parametrize("learns", [True, False])
def test_C2_steps_of_a_program_without_modules_begin_within_its_run(learns: bool) -> None:
    x = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([x], 0.1)
    with Profiler() as profiler:
        for _ in range(3):
            if learns:
                (x * x).sum().backward()
            optimizer.step()
    steps, log = profiler.report()["steps"], profiler.collector
    assert steps["count"] == 3 and log.started > 0
    assert steps["first_s"] + 2 * steps["time_s"]["min"] <= (log.stopped - log.started) / 1e9, "not since the boot"


class Calibrated(torch.nn.Module):
    """As e3nn's activations: its constructor calls a module, on many numbers."""

    def __init__(self):
        super().__init__()
        self.act = torch.nn.Tanh()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = self.act(torch.ones(1000)).pow(2).mean().item()
        self.spread = torch.randn(1000).std().item()

    def forward(self, x):
        return self.act(self.linear(x)) / self.scale


class Decorated(Calibrated):
    @functools.wraps(Calibrated.__init__)
    def __init__(self, *args):
        super().__init__(*args)


@pytest.mark.parametrize("kind", [Calibrated, Decorated])
@pytest.mark.parametrize("profiler", [Profiler, Estimator])
def test_C2_what_a_modules_constructor_calls_is_construction(profiler, kind):
    with profiler() as p:
        nets = [kind(), kind()]
        optimizer = torch.optim.SGD([w for net in nets for w in net.parameters()], 0.1)
        for _ in range(N):
            sum(net(torch.ones(2, 4)).sum() for net in nets).backward()
            optimizer.step()
    report = p.report()
    rows = {row["path"]: row["calls"] for row in report["modules"]}
    assert not any("Tanh" in path for path in rows)
    assert rows[f"{kind.__name__}.act"] == rows[f"{kind.__name__} #2.act"] == N
    assert report["steps"]["count"] == N
    assert report["startup"]["ops"] > 0 and "aten::std" not in {row["name"] for row in report["ops"]}


def test_C2_what_a_constructor_of_another_class_calls_is_no_construction():
    class Trainer:
        def __init__(self):
            self.net = Part()
            self.net(torch.ones(2, 4)).sum().backward()

    with Profiler() as p:
        Trainer()
    rows = {row["path"]: row["calls"] for row in p.report()["modules"]}
    assert rows["Part"] == rows["Part.inner"] == 1


@pytest.mark.parametrize("profiler", [Profiler, Estimator])
def test_C2_what_a_constructor_trains_is_no_construction_from_its_first_backward_pass_on(profiler):
    """All of such a training was construction, and the report had no model."""

    class TrainsItself(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(4, 4)
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            for _ in range(N):
                self.body(torch.ones(2, 4)).sum().backward()
                optimizer.step()

    with profiler() as p:
        TrainsItself()
    report = p.report()
    rows = {row["path"]: row["calls"] for row in report["modules"]}
    assert rows["TrainsItself.body"] == N - 1 and report["model"]["name"] == "TrainsItself"
    assert report["steps"]["count"] == N


@pytest.mark.parametrize("profiler", [Profiler, Estimator])
def test_C2_what_a_constructor_trains_without_modules_is_no_construction_either(profiler):
    """All of it was, up to the first call of a module."""

    class Regression(torch.nn.Module):
        def __init__(self, x):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(4, 4))
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            for _ in range(N):
                (x @ self.w - x).square().sum().backward()
                optimizer.step()

        def forward(self, x):
            return x @ self.w

    for whole in (False, True):
        with profiler() as p:
            model = Regression(torch.ones(2, 4))
            if whole:
                model(torch.ones(2, 4))
        report = p.report()
        calls = {row["name"]: row["calls"] for row in report["ops"]}
        assert (calls["aten::mm"], calls["aten::sum"]) == (2 * N + whole, N), "forward and backward"
        assert report["steps"]["count"] == N and {"backward", "optimizer"} <= {row["name"] for row in report["phases"]}
        assert report["startup"]["ops"] > 0 and not any(
            "count as construction" in words for words in report["warnings"]
        )


class Tuned(torch.nn.Module):
    """As a kernel that is tuned when it is called first."""

    def __init__(self):
        super().__init__()
        self.first = True

    def forward(self, x):
        time.sleep(0.5 * self.first)
        self.first = False
        return x + 1


@torch.no_grad()
def tuned():
    head = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(Tuned(), torch.nn.ReLU()))
    for _ in range(4):
        model(head(torch.ones(2, 4)))
        time.sleep(0.05)


def test_C2_finding_first_iteration_names_the_module_that_is_slow_at_first():
    with Profiler() as p:
        tuned()
    (place,) = [row["place"] for row in p.report()["findings"] if row["id"] == "first-iteration"]
    assert place["module"] == "Sequential.1.0"


class Resize(torch.nn.Module):
    """A transform of images, as torchvision's are."""

    def forward(self, x):
        return torch.nn.functional.interpolate(x, scale_factor=2)


@pytest.mark.parametrize("profiler", [Profiler, Estimator])
def test_C2_a_transform_that_is_called_before_the_model_is_made_ends_no_construction(profiler):
    """Neural style's: what its model was initialized with was "forward", 40 % of the time."""
    with profiler() as p:
        images = [Resize()(torch.rand(1, 1, 2, 2)) for _ in range(2)]
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(N):
            net(images[0]).sum().backward()
            optimizer.step()
    report = p.report()
    names = {row["name"] for row in report["ops"]}
    assert "aten::uniform_" not in names and "aten::upsample_nearest2d" not in names and "aten::addmm" in names
    rows = {row["path"]: row["calls"] for row in report["modules"]}
    assert rows["Sequential"] == N == report["steps"]["count"] and "Resize" not in rows


@pytest.mark.parametrize("profiler", [Profiler, Estimator])
@pytest.mark.parametrize("made", ["before", "between", "never"])
def test_C2_a_module_without_parameters_that_works_in_the_loop_is_no_construction(profiler, made):
    with profiler() as p:
        resize = Resize()
        net = (
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4)) if made == "before" else torch.nn.Flatten()
        )
        for i in range(N):
            x = resize(torch.rand(1, 1, 2, 2))
            if made == "between" and not i:
                net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
            net(x)
    report = p.report()
    rows = {row["path"]: row["calls"] for row in report["modules"]}
    assert rows["Resize"] == N
    assert {row["name"]: row["calls"] for row in report["ops"]}["aten::upsample_nearest2d"] == N
    assert not [text for text in report["warnings"] if "no nn.Module" in text]
