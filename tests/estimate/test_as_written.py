"""C4: programs as people write them, each of which an estimate once got wrong."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from mindtorch._ext import intercept
from mindtorch.base.errors import UnsupportedOperationError
from mindtorch.engine.execute import values
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator


def report(program: Callable[[], Any], **options: Any) -> dict[str, Any]:
    estimator = Estimator(target=targets.find("h100"), **options)
    with estimator:
        program()
    return estimator.report(command=["program.py"], exit_code=0, interrupted=False, workload=None)


def about(program: Callable[[], Any], part: str) -> float:
    """Seconds of the ops whose name has this part."""
    return float(sum(row["about_s"] for row in report(program)["ops"] if part in row["name"]))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_C4_packed_sequences_go_back(kind: type) -> None:
    """Their formula in C++ read batch sizes that had no memory: every program with packed sequences that trains."""
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        x = torch.randn(3, 5, 4, device="cuda", requires_grad=True)
        packed = pack_padded_sequence(x, torch.tensor([2, 5, 3]), batch_first=True, enforce_sorted=False)
        net = kind(4, 6, 2, batch_first=True, bidirectional=True).cuda()
        out, _ = pad_packed_sequence(net(packed)[0], batch_first=True)
        out.sum().backward()
    assert packed.batch_sizes.tolist() == [3, 3, 2, 1, 1]
    assert x.grad is not None and x.grad.shape == x.shape and out.shape == (3, 5, 12)


SIZES: dict[str, Callable[[], Any]] = {
    "conv": lambda: nn.Conv2d(64, 64, 3, padding=1).cuda()(torch.ones(16, 64, 56, 56, device="cuda")),
    "conv ": lambda: nn.ConvTranspose2d(64, 32, 2, 2).cuda()(torch.ones(16, 64, 56, 56, device="cuda")),
    "conv  ": lambda: nn.Conv1d(64, 64, 3, groups=4).cuda()(torch.ones(16, 64, 560, device="cuda")),
    "mm": lambda: torch.ones(8, 16, 512, 512, device="cuda") @ torch.ones(8, 16, 512, 512, device="cuda"),
}


@pytest.mark.parametrize("part", SIZES)
def test_C4_inference_mode_takes_as_long_as_no_grad(part: str) -> None:
    """It hands down convolutions whole: they were taken for one endless dot product, a thousand times too slow."""

    def under(mode: Callable[[], Any]) -> Callable[[], Any]:
        def program() -> None:
            with mode():
                SIZES[part]()

        return program

    name = part.strip()
    plain, inference = about(under(torch.no_grad), name), about(under(torch.inference_mode), name.replace("mm", "mat"))
    assert plain > 0 and inference == pytest.approx(plain, rel=0.2)


def test_C4_a_transposed_convolution_is_a_product_of_its_inputs_positions() -> None:
    """Of its result there are four times as many; each of them meets a quarter of the weights."""

    up = about(lambda: nn.ConvTranspose2d(128, 256, 4, 4).cuda()(torch.ones(64, 128, 32, 32, device="cuda")), "conv")
    down = about(lambda: nn.Conv2d(256, 128, 4, 4).cuda()(torch.ones(64, 256, 128, 128, device="cuda")), "conv")
    assert up == pytest.approx(down, rel=0.5)  # as many FLOPs and bytes


def test_C4_masked_select_goes_back() -> None:
    """Its gradient asked for values, to have the last bits of the CPU's."""
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        x = torch.randn(10, 10, device="cuda", requires_grad=True)
        torch.masked_select(x, torch.rand(10, 10, device="cuda") > 0.5).sum().backward()
        x.prod().backward()
    assert x.grad is not None and x.grad.shape == (10, 10)


def test_C4_what_was_pickled_can_be_read(tmp_path: Path) -> None:
    """It came back on torch's meta device, or as an empty file."""
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        model = nn.Linear(4, 3).cuda()
        again = pickle.loads(pickle.dumps(model))
        assert (
            again.weight.is_cuda
            and again.weight.requires_grad
            and again(torch.ones(2, 4, device="cuda")).shape == (2, 3)
        )
        assert pickle.loads(pickle.dumps(torch.arange(4))).tolist() == [0, 1, 2, 3]
        with open(tmp_path / "a.pkl", "wb") as file:
            pickle.dump({"model": model.state_dict(), "epoch": 3}, file)
        with open(tmp_path / "a.pkl", "rb") as file:
            loaded = pickle.load(file)
        assert loaded["epoch"] == 3 and loaded["model"]["weight"].is_cuda
    assert not list(tmp_path.iterdir())


def test_C4_scripted_and_traced_modules_are_saved_and_loaded(tmp_path: Path) -> None:
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        x = torch.ones(2, 4, device="cuda")
        for name, module in (
            ("a", torch.jit.script(nn.Linear(4, 3).cuda())),
            ("b", torch.jit.trace(nn.Linear(4, 3).cuda(), x)),
        ):
            torch.jit.save(module, tmp_path / name)
            module.save(str(tmp_path / f"{name}2"))
            for file in (name, f"{name}2"):
                assert torch.jit.load(tmp_path / file, map_location="cuda")(x).shape == (2, 3)
    assert not list(tmp_path.iterdir())


def test_C4_data_parallel_over_several_devices() -> None:
    with Estimator(target=targets.find("h100"), devices=2) as estimator:
        model = nn.DataParallel(nn.Sequential(nn.Linear(1000, 1000), nn.BatchNorm1d(1000)).cuda())
        out = model(torch.randn(63, 1000).cuda())
        out.sum().backward()
        held = [torch.cuda.memory_allocated(i) for i in range(2)]
    assert out.shape == (63, 1000) and out.device == torch.device("cuda", 0)
    weight = model.module[0].weight
    assert weight.grad is not None and weight.grad.device == weight.device and held[0] > held[1]
    calls = {row["name"]: (row["calls"], row["flops"]) for row in estimator.report()["ops"]}
    assert calls["aten::addmm"] == (2, 2 * 63 * 1000 * 1000)


@pytest.mark.parametrize("places", list(itertools.product(("cpu", "cuda"), repeat=3)))
def test_C4_targets_and_lengths_of_ctc_may_be_anywhere(places: tuple[str, str, str]) -> None:
    """torch takes them to the scores' device."""
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        scores = torch.randn(5, 2, 4, device="cuda", requires_grad=True)
        rest = (torch.ones(2, 3, dtype=torch.long), torch.tensor([5, 5]), torch.tensor([3, 3]))
        for loss in (nn.functional.ctc_loss, nn.CTCLoss()):
            loss(scores.log_softmax(2), *(t.to(place) for t, place in zip(rest, places, strict=True))).backward()
        assert scores.grad is not None and scores.grad.is_cuda


def test_C4_models_are_shared_between_processes() -> None:
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        model = nn.Linear(3, 3)
        assert model.share_memory() is model and model.weight.is_shared()
        assert nn.Linear(3, 3).cuda().share_memory().weight.is_cuda


@pytest.mark.parametrize(
    ("words", "error", "program"),
    [
        ("cannot be multiplied (4x5 and 4x5)", RuntimeError, lambda: torch.ones(4, 5).cuda() @ torch.ones(4, 5).cuda()),
        ("cannot be multiplied (3x7 and 4x5)", RuntimeError, lambda: nn.Linear(4, 5).cuda()(torch.ones(3, 7).cuda())),
        ("mat2 must be col_major", RuntimeError, lambda: scaled(torch.ones(16, 16))),
        ("no jagged tensors", UnsupportedOperationError,
         lambda: torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=torch.jagged, device="cuda")),
    ],
)  # fmt: skip
def test_C4_refusals_in_torchs_words(words: str, error: type, program: Callable[[], Any]) -> None:
    with estimating(Accelerator("Test GPU", 80 * 10**9)), pytest.raises(error, match=re.escape(words)):
        program()


@pytest.mark.parametrize(
    "program",
    [
        lambda device: torch.ones(4, 5, device=device) @ torch.ones(4, 6, device=device),
        lambda device: nn.Linear(4, 5, device=device)(torch.ones(3, 7, device=device)),
        lambda device: nn.Linear(4, 5, bias=False, device=device)(torch.ones(3, 7, device=device)),
        lambda device: torch.ones(2, device=device).addmm(*torch.ones(2, 4, 5, device=device)),
    ],
    ids=["mm", "linear", "linear without bias", "addmm"],
)
def test_C4_products_that_do_not_fit_are_refused_in_the_installed_torchs_words(program: Callable[[str], Any]) -> None:
    with pytest.raises(RuntimeError) as eager:
        program("cpu")
    with estimating(Accelerator("Test GPU", 80 * 10**9)), pytest.raises(RuntimeError) as estimated:
        program("cuda")
    assert str(estimated.value) == str(eager.value)


def scaled(b: torch.Tensor) -> Any:
    a, b = (t.cuda().to(torch.float8_e4m3fn) for t in (torch.ones(16, 16), b))
    return torch._scaled_mm(a, b, torch.ones((), device="cuda"), torch.ones((), device="cuda"))


def test_C4_a_scaled_product_by_columns_is_taken() -> None:
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        b = torch.ones(16, 16, device="cuda").to(torch.float8_e4m3fn).t()
        assert torch._scaled_mm(b.t(), b, torch.ones((), device="cuda"), torch.ones((), device="cuda")).shape == (
            16,
            16,
        )


@pytest.mark.filterwarnings("error::UserWarning", "ignore:.*Profiler clears events")  # torch 2.12, of any profile
def test_C4_there_is_no_word_of_what_this_machine_has_not() -> None:
    """torch without CUDA warned that there is no cuDNN, and printed stacks for each event of a profile."""
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        assert nn.LSTM(4, 3).cuda()(torch.ones(5, 2, 4, device="cuda"))[0].shape == (5, 2, 3)
        both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=both) as profiled:
            torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
        assert profiled.key_averages().table(sort_by="cuda_time_total")


@pytest.mark.filterwarnings("ignore")
def test_C4_beams_are_searched_to_their_length() -> None:
    """The search ended after a step, and gave sequences of no tokens."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
             "intermediate_size": 32, "vocab_size": 99}  # fmt: skip
    calls = []
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).cuda().eval()
        model.register_forward_hook(lambda *_: calls.append(1))
        ids = torch.ones(2, 5, dtype=torch.int64, device="cuda")
        assert model.generate(ids, max_new_tokens=6, num_beams=3).shape == (2, 11)
        found = model.generate(ids, max_new_tokens=4, num_beams=2, num_return_sequences=2, return_dict_in_generate=True)
        assert found.sequences.shape == (4, 9) and len(calls) == 10
    real = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    assert real.generate(torch.ones(2, 5, dtype=torch.int64), max_new_tokens=6, num_beams=3).shape == (2, 11)


def test_C4_what_is_taken_apart_each_time_makes_no_entry_for_it() -> None:
    """A known value, a gradient, more inputs than a key tells of: what such calls come to may differ each time."""
    interner = values.tape.interner
    estimator = Estimator(target=targets.find("h100"))
    with estimator:
        known = torch.tensor([1, 2, 3], device="cuda")
        leaf = torch.ones(3, device="cuda", requires_grad=True)
        many = [torch.empty(3, device="cuda") for _ in range(15)]
        for call, at_once in (
            (lambda: known * 2, 0), (lambda: leaf * 2, 0), (lambda: torch.stack(many), 0),
            (lambda: torch.stack(many[:14]), 5), (lambda: many[0] * 2, 5),
        ):  # fmt: skip
            call(), call()
            before, whole = interner.counts(), intercept.counts()[0]
            for _ in range(5):
                call()
            assert interner.counts() == before and intercept.counts()[0] == whole + at_once


def test_C4_what_a_call_comes_to_is_known_by_mode() -> None:
    modes: list[Callable[[], Any]] = [torch.enable_grad, torch.no_grad, torch.inference_mode]
    with Estimator(target=targets.find("h100")):
        x = torch.empty(3, device="cuda")
        for mode in modes:
            counted = [intercept.counts()[0]]
            with mode():
                for _ in range(3):
                    x * 2
                    counted.append(intercept.counts()[0])
            assert [after - before for before, after in itertools.pairwise(counted)] == [0, 1, 1], mode


NEW: dict[str, Callable[..., Any]] = {
    "new_empty": lambda x, **on: x.new_empty((1024,), **on),
    "new_zeros": lambda x, **on: x.new_zeros((1024,), **on),
    "new_full": lambda x, **on: x.new_full((1024,), 2.0, **on),
    "new_empty_strided": lambda x, **on: x.new_empty_strided((1024,), (1,), **on),
    "new_tensor": lambda x, **on: x.new_tensor([1.0] * 1024, **on),
    "zeros_like": lambda x, **on: torch.zeros_like(x, **on),
    "rand_like": lambda x, **on: torch.rand_like(x, **on),
}


@pytest.mark.parametrize("name", NEW)
def test_C4_what_is_made_on_a_named_device_has_memory_there_and_once(name: str) -> None:
    with Estimator(target=targets.find("h100")):
        x = torch.ones(1024, device="cuda")
        for on, nbytes in (
            ({}, 4096),
            ({"device": x.device}, 4096),
            ({"device": "cuda"}, 4096),
            ({"device": "cpu"}, 0),
        ):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            made = NEW[name](x, **on)
            assert made.device.type == ("cuda" if nbytes else "cpu")
            assert torch.cuda.memory_allocated() - before == nbytes, on
            assert torch.cuda.max_memory_allocated() - before == nbytes, on
            del made
