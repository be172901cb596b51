"""The program's own Python is in none of an estimate's times: it is told, as measured here."""

import gc
import os
import random
import time
from types import FunctionType

import pytest
import torch
from torch import nn

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate import host_time
from mindtorch.profile.estimate.estimator import Estimator

A100 = targets.find("a100")
REST = 0.2


def environment():
    time.sleep(REST)  # a step of it


def report_of(program):
    with Estimator(target=A100) as seen:
        program()
    return seen.report()


def test_C4_the_programs_own_time_is_told_with_its_line():
    def program():
        model = nn.Linear(4, 4).cuda()
        for _ in range(3):
            model(torch.ones(2, 4, device="cuda"))
            environment()

    report = report_of(program)
    assert REST < report["host"]["here_s"], report["host"]
    assert report["host"]["lines"][0]["source"].endswith("# a step of it")
    assert report["totals"]["time_s"] < 0.01  # of the target, without it


def test_C4_what_a_library_does_it_does_for_the_programs_line():
    def program():
        model, end = nn.Linear(4, 4).cuda(), time.thread_time() + REST
        model(torch.ones(2, 4, device="cuda"))
        while time.thread_time() < end:
            random.shuffle(numbers)  # the library works
        model(torch.ones(2, 4, device="cuda"))

    numbers = list(range(20_000))
    assert report_of(program)["host"]["lines"][0]["source"].endswith("# the library works")


def test_C4_what_a_library_of_another_folder_does_it_does_for_the_programs_line(monkeypatch, tmp_path):
    """Of the user's own site-packages, or of those below a virtual environment."""
    folder = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(folder))

    def busy():
        end = time.thread_time() + REST
        while time.thread_time() < end:
            random.shuffle(numbers)

    def program():
        model = nn.Linear(4, 4).cuda()
        model(torch.ones(2, 4, device="cuda"))
        library()  # the library works
        model(torch.ones(2, 4, device="cuda"))

    numbers = list(range(20_000))
    code = busy.__code__.replace(co_filename=str(folder / "drawing.py"))
    library = FunctionType(code, globals(), "busy", None, busy.__closure__)
    assert report_of(program)["host"]["lines"][0]["source"].endswith("# the library works")


def test_C4_what_the_standard_library_does_for_torch_is_torchs(monkeypatch):
    def slow(tensor):
        end = time.thread_time() + REST
        while time.thread_time() < end:
            random.shuffle(numbers)

    def program():
        model, x = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
        model(x)
        torch.nn.functional.slow(x)
        model(x)

    numbers = list(range(20_000))
    code = slow.__code__.replace(co_filename=torch.nn.functional.__file__)
    function = FunctionType(code, globals(), "slow", None, slow.__closure__)
    monkeypatch.setattr(torch.nn.functional, "slow", function, raising=False)
    assert report_of(program)["host"]["here_s"] < REST / 2


def test_C4_what_came_before_the_model_is_not_told():
    def program():
        environment()
        nn.Linear(4, 4).cuda()(torch.ones(2, 4, device="cuda"))

    assert report_of(program)["host"]["here_s"] < REST / 2


def test_C4_recording_ops_is_none_of_the_programs_own_time():
    """A loop that does nothing but ops notes one all the time."""

    def program():
        x, end = torch.ones(4, device="cuda"), time.thread_time() + 2 * REST
        model = nn.Identity()
        while time.thread_time() < end:
            x = model(x) + 1

    assert report_of(program)["host"]["here_s"] < REST / 2


def test_C4_searching_for_garbage_is_none_of_the_programs_own_time():
    """A line that collects was said to be the program's: what is searched through is mostly what an estimate holds."""

    def program():
        model, x = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
        model(x)
        kept = [[i] for i in range(300_000)]
        end = time.thread_time() + REST
        while time.thread_time() < end:
            gc.collect()
        model(x)
        assert kept

    callbacks = list(gc.callbacks)
    assert report_of(program)["host"]["here_s"] < REST / 2
    assert gc.callbacks == callbacks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_C4_a_fork_has_no_thread_of_ours():
    with Estimator(target=A100):
        (host,) = host_time._active
        assert host.sampler.running
        child = os.fork()
        if child == 0:
            os._exit(len(host_time._active) + 2 * host.sampler.running)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert host.sampler.running
    assert not host.sampler.running and not host_time._active


def test_C4_the_arguments_of_a_distribution_that_is_to_check_them_are_read_where_they_are() -> None:
    """Each check was a number on the CPU: no operation of the device's, and no wait for it."""
    with Estimator(target=targets.find("h100")) as estimator:
        mean = torch.randn(5, device="cuda")
        assert torch._is_all_true(mean > 0).device.type == "cuda"
        torch.distributions.Normal(mean, mean, validate_args=True)
    assert not estimator.report()["assumed"]
