"""C4: while estimating, every device is one without data, and what a script asks of CUDA is answered."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.base.errors import NoDataError, UnsupportedOperationError, UsageError
from mindtorch.profile.cost import targets as known_targets
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.assumptions import assumed
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator

GPU = Accelerator("Test GPU", 10**9, 2)
BIG = 10**12


@pytest.fixture
def session() -> Iterator[None]:
    with estimating(GPU):
        yield


@pytest.mark.parametrize(
    ("device", "expected"),
    [(None, "cpu"), ("cpu", "cpu"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), (torch.device("cuda", 1), "cuda:1"),
     (1, "cuda:1"), ("npu:1", "npu:1"), ("remote_accelerator", "cuda:0")],
)  # fmt: skip
def test_C4_creation_on_any_device_takes_no_memory(session: None, device: object, expected: str) -> None:
    for t in (torch.zeros(BIG, device=device), torch.randn(BIG, device=device), torch.empty(BIG, device=device)):
        assert str(t.device) == expected and t.shape == (BIG,)
        assert type(t + 1) is type(t) and str((t + 1).device) == expected
        assert t.is_cuda == expected.startswith("cuda") and t.is_cpu == (expected == "cpu") and not t.is_meta
    for like in (torch.zeros_like(t), t.new_zeros(3), torch.empty_like(t, device="cuda:1")):
        assert str(like.device) == (expected if like.shape == (3,) or like.device == t.device else "cuda:1")


def test_C4_moves_between_devices(session: None) -> None:
    t = torch.zeros(BIG)
    assert [str(x.device) for x in (t.cuda(), t.to("cuda:1"), t.cuda().cpu(), t.to("cuda", torch.float16))] == [
        "cuda:0", "cuda:1", "cpu", "cuda:0"]  # fmt: skip
    assert t.to("cpu") is t and t.to(torch.float16).dtype is torch.float16
    w = torch.zeros(3, requires_grad=True)
    w.cuda().sum().backward()
    assert str(w.grad.device) == "cpu" and w.grad.shape == (3,)


def test_C4_a_module_keeps_its_parameters_when_it_moves(session: None) -> None:
    model = nn.Sequential(nn.Linear(4, BIG), nn.BatchNorm1d(3))
    first, tied = model[0].weight, model[0].weight
    model[0].bias.grad = torch.zeros(BIG)
    assert model.cuda() is model and model[0].weight is first is tied
    assert {str(t.device) for t in (*model.parameters(), *model.buffers(), model[0].bias.grad)} == {"cuda:0"}
    assert isinstance(first, nn.Parameter) and first.requires_grad
    assert model.half()[0].weight.dtype is torch.float16 and model[0].weight is first
    copied = copy.deepcopy(model)
    assert copied[0].weight is not first and str(copied[0].weight.device) == "cuda:0"


@pytest.mark.parametrize("named", [False, True])
def test_C4_a_module_moves_to_where_a_tensor_is(session: None, named: bool) -> None:
    """To BoTorch's models: torch reads the tensor's device in C++, where it has none."""
    like = torch.zeros(2, device="cuda:1", dtype=torch.float64)
    for moved in (nn.Linear(2, 2), nn.BatchNorm1d(2)):
        moved.to(tensor=like, non_blocking=True) if named else moved.to(like, True)
        assert {str(p.device) for p in moved.state_dict().values()} == {"cuda:1"}
        assert {p.dtype for p in moved.parameters()} == {torch.float64}
    moved.to(torch.zeros(1))
    assert moved.weight.device.type == "cpu" and moved.weight.dtype is torch.float32
    with pytest.raises(TypeError, match=r"nn\.Module\.to only accepts floating point or complex dtypes"):
        moved.to(torch.zeros(1, device="cuda", dtype=torch.int64))
    packed = nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    packed = packed.to(tensor=like) if named else packed.to(like)
    assert str(packed.data.device) == "cuda:1" and packed.data.dtype is torch.float64


def test_C4_generators_can_be_pickled(session: None) -> None:
    drawn = pickle.loads(pickle.dumps(torch.Generator().manual_seed(3)))
    assert isinstance(drawn, torch.Generator) and drawn.initial_seed() == 3


def test_C4_default_devices(session: None) -> None:
    with torch.device("cuda:1"):
        assert str(torch.zeros(2).device) == str(nn.Linear(2, 2).weight.device) == "cuda:1"
    torch.set_default_device("cuda")
    try:
        assert str(torch.ones(2).device) == "cuda:0"
    finally:
        torch.set_default_device(None)
    assert str(torch.ones(2).device) == "cpu"


def test_C4_plain_tensors_that_slip_in_become_parameters_without_data(session: None) -> None:
    weight = nn.Parameter(torch.Tensor(3, 4))
    assert isinstance(weight, mindtorch.MetaTensor) and str(weight.device) == "cpu" and weight.requires_grad
    assert isinstance(torch.from_numpy(__import__("numpy").ones((2, 4), "float32")) @ weight.T, mindtorch.MetaTensor)


def test_C4_questions_about_cuda_are_answered(session: None) -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 2 and torch.cuda.current_device() == 0
    assert torch.cuda.get_device_name() == "Test GPU"
    assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1] == 10**9
    with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream()):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        end.record()
    torch.cuda.synchronize()
    assert int(start.elapsed_time(end)) == 1  # unknown, and nothing to divide by zero with
    assert [(row["op"], row["value"]) for row in assumed()] == [("elapsed_time", 1.0)]
    torch.cuda.manual_seed_all(0)
    assert torch.randn(3, generator=torch.Generator("cuda"), device="cuda").shape == (3,)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(8, 3)), 4, num_workers=2,
                                         pin_memory=True)  # fmt: skip
    assert loader.num_workers == 2 and loader.pin_memory and len(list(loader)) == 2


def test_C4_a_training_step_in_mixed_precision(session: None) -> None:
    model = nn.Linear(4, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(torch.randn(3, 4, device="cuda"))
    assert out.dtype is torch.bfloat16
    out.sum().backward()
    optimizer.step()
    assert str(model.weight.grad.device) == "cuda:0" and model.weight.grad.dtype is torch.float32


def test_C4_autocast_to_float32_is_said_nothing_of_as_on_cuda(session: None) -> None:
    """The CPU's autocast, which stands for CUDA's, does not know it; a program was told so of the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cuda", torch.float32):
            assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") is torch.float32
            assert nn.Linear(4, 2).cuda().half()(torch.ones(3, 4, device="cuda")).dtype is torch.float32
        with torch.autocast("cuda", torch.float32, enabled=False):
            assert not torch.is_autocast_enabled("cuda")


def test_C4_torch_is_as_before_afterwards() -> None:
    owners = (torch, torch.cuda, torch.Tensor, nn.Parameter, torch.utils.data.DataLoader)
    before = [dict(vars(owner)) for owner in owners]
    with pytest.raises(ZeroDivisionError), estimating(GPU):
        raise ZeroDivisionError
    assert [dict(vars(owner)) for owner in owners] == before
    t = torch.ones(2)
    assert type(t) is torch.Tensor and t.tolist() == [1.0, 1.0]
    assert isinstance(torch.ones(2, device="remote_accelerator") + 1, mindtorch.LazyTensor)


def test_C4_estimates_do_not_nest_and_values_stay_unknown_outside() -> None:
    with estimating(), pytest.raises(UsageError, match="already running"), estimating():
        pass
    with pytest.raises(NoDataError, match="meta tensor has no data"):
        mindtorch.ones(2, device="meta").sum().item()


def test_C4_without_an_accelerator_there_is_no_cuda() -> None:
    of_this_machine = torch.cuda.is_available()  # what is built with CUDA may find no driver
    with estimating():
        assert torch.cuda.is_available() is of_this_machine and str(torch.ones(2).cuda().device) == "cuda:0"


def test_C4_a_device_by_number_is_cudas(session: None) -> None:
    for t in (torch.ones(2).to(0), torch.ones(2).cuda(0), nn.Linear(2, 2).to(0).weight, torch.ones(2).cuda().to(0)):
        assert str(t.device) == "cuda:0" and t.is_cuda


def test_C4_memory_is_answered_per_device(session: None) -> None:
    host = torch.zeros(10**6)
    from mindtorch._ext import ledger
    from mindtorch.engine.execute.values import tape

    ledger.open(tape, lambda kind, at: None)
    try:
        host, device, other = torch.zeros(10**6), torch.zeros(1000, device="cuda"), torch.zeros(10, device="cuda:1")
        assert torch.cuda.memory_allocated() == 4096  # as torch's allocator gives it out
        assert torch.cuda.memory_allocated(1) == 512 > other.nbytes
        del device
        assert torch.cuda.max_memory_allocated() == 4096 and torch.cuda.memory_allocated() == 0
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0 and host.nbytes == 4 * 10**6
    finally:
        ledger.close()


def test_C4_compiling_pinning_and_validating_do_nothing(session: None) -> None:
    model = torch.compile(nn.Linear(2, 2))
    torch.compile()(model)
    assert isinstance(model, nn.Linear) and torch.ones(2).pin_memory().shape == (2,)
    assert isinstance(torch.Generator(), torch.Generator)
    assert torch.distributions.Normal(torch.randn(3), torch.randn(3).exp()).rsample().shape == (3,)


def test_C4_packed_sequences(session: None) -> None:
    lstm, x = nn.LSTM(8, 16, batch_first=True).cuda(), torch.randn(4, 10, 8, device="cuda")
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([10, 7, 5, 2]), batch_first=True)
    assert packed.data.shape == (24, 8) and packed.batch_sizes.tolist() == [4, 4, 3, 3, 3, 2, 2, 1, 1, 1]
    out, lengths = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    assert out.shape == (4, 10, 16) and lengths.tolist() == [10, 7, 5, 2] and str(out.device) == "cuda:0"
    out.sum().backward()
    assert lstm.weight_ih_l0.grad.shape == (64, 8)


def test_C4_lengths_of_a_ctc_loss_are_where_the_program_has_them(session: None) -> None:
    scores = torch.randn(50, 4, 20, device="cuda").log_softmax(2).detach().requires_grad_()
    targets, taken = torch.ones(4, 30, dtype=torch.int64, device="cuda"), torch.full((4,), 50)
    for lengths in torch.tensor([10, 20, 30, 5]), torch.tensor([10, 20, 30, 5], device="cuda"):
        nn.functional.ctc_loss(scores, targets, taken, lengths).backward()
        torch.ctc_loss(scores, targets, taken, lengths, reduction=2).backward()
        nn.functional.ctc_loss(scores, targets, taken, target_lengths=lengths, reduction="none").sum().backward()
        assert scores.grad is not None and scores.grad.shape == scores.shape


def test_C4_complex_numbers_are_where_their_parts_are(session: None) -> None:
    assert torch.complex(torch.ones(3, device="cuda"), torch.ones(3, device="cuda")).is_cuda
    assert not torch.complex(torch.ones(3), torch.ones(3)).is_cuda


def test_C4_windows_that_nobody_knows_are_no_reason_to_refuse_istft(session: None) -> None:
    """Their sum was assumed to be 0, which istft() does not take."""
    for window in (torch.rand(64, device="cuda"), torch.rand(64).cuda() + 0.5):
        spectrum = torch.stft(torch.rand(2, 640, device="cuda"), 64, 16, window=window, return_complex=True)
        assert torch.istft(spectrum, 64, 16, window=window).shape == (2, 640)
        assert (spectrum * 2).istft(64, 16, window=window, length=600).shape == (2, 600)


def test_C4_modules_that_learn_their_shapes(session: None) -> None:
    net = nn.Sequential(nn.LazyLinear(BIG), nn.LazyBatchNorm1d(), nn.LazyLinear(3, device="cuda")).cuda()
    weights = list(net.parameters())
    assert {str(p.device) for p in weights} == {"cuda:0"}
    out = net(torch.randn(4, 7, device="cuda"))
    assert all(a is b for a, b in zip(net.parameters(), weights, strict=True))
    assert net[0].weight.shape == (BIG, 7) and str(net[1].running_mean.device) == "cuda:0"
    out.sum().backward()
    torch.optim.Adam(weights).step()
    assert net[0].weight.grad.shape == (BIG, 7) and out.shape == (4, 3)


def test_C4_draws_around_means_with_a_default_device(session: None) -> None:
    torch.set_default_device("cuda")
    try:
        drawn = torch.distributions.Normal(torch.zeros(2), torch.ones(2)).sample()
        assert drawn.device == torch.device("cuda", 0) and drawn.shape == (2,)
        assert torch.normal(0.0, torch.ones(3)).is_cuda and torch.normal(torch.ones(3), 1.0).shape == (3,)
    finally:
        torch.set_default_device(None)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_C4_flex_attention(session: None, compiled: bool) -> None:
    """As the compiled kernel has it: no scores are held, forward or backward."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attend = torch.compile(flex_attention) if compiled else flex_attention
    q = torch.randn(1, 2, 128, 16, device="cuda")
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 2, 128, 128, device="cuda")
    for options in ({}, {"block_mask": mask}, {"score_mod": lambda score, b, h, i, j: score + (i - j)}):
        out = attend(q, q, q, **options)
        assert out.shape == q.shape and out.is_cuda
    attend(q.requires_grad_(), q, q).sum().backward()
    assert q.grad is not None and q.grad.shape == q.shape
    with torch.no_grad():
        assert attend(q, q, q).shape == q.shape


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
def test_C4_products_with_sparse_matrices(session: None, layout: torch.layout) -> None:
    x = torch.ones(4, 3, device="cuda")
    made = torch.eye(4, device="cuda").to_sparse(layout=layout)
    for sparse in (made, torch.eye(4).to_sparse(layout=layout).to("cuda"), made.to(torch.float32)):
        out = sparse @ x
        assert out.shape == (4, 3) and (out + x).is_cuda


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_C4_quantizing_is_refused_in_a_sentence(session: None) -> None:
    with pytest.raises(UnsupportedOperationError, match="a program without quantized tensors"):
        torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)), {nn.Linear}, dtype=torch.qint8)


def test_C4_modules_move_to_npus_by_name(session: None) -> None:
    for name, expected in (("npu:1", "npu:1"), ("npu", "npu:0")):
        net = nn.Linear(BIG, 2).to(name, torch.bfloat16)
        assert str(net.weight.device) == expected and net.weight.dtype is torch.bfloat16
        assert str(net(torch.ones(1, BIG, device=name, dtype=torch.bfloat16)).device) == expected


def test_C4_whole_numbers_are_counted_as_on_accelerators(session: None) -> None:
    known = torch.histc(torch.tensor([0, 1, 1, 7], dtype=torch.int32).cuda(), 4, 0, 3)
    assert known.tolist() == [1, 2, 0, 0] and known.dtype is torch.int32
    assert torch.histc(torch.randn(8, 4, device="cuda").argmax(1), 4, 0, 3).shape == (4,)


@pytest.mark.parametrize("before", [None, "meta"])
def test_C4_the_default_device_of_a_program_ends_with_it(before: str | None) -> None:
    torch.set_default_device(before)
    try:
        with estimating(GPU):
            torch.set_default_device("cuda")
            assert torch.ones(2).is_cuda
        assert torch.ones(2).device.type == (before or "cpu") == torch.get_default_device().type
        with estimating(GPU):
            torch.set_default_device(None)
        assert torch.ones(2).device.type == (before or "cpu")
    finally:
        torch.set_default_device(None)


def test_C4_values_of_a_storage_are_read_as_the_tensor_s(session: None) -> None:
    known, unknown = torch.tensor([3, 4]), torch.randn(2, 3)
    assert known.storage().tolist() == [3, 4] and known.storage()[1] == 4
    assert [round(x, 9) for x in unknown.data.storage().tolist()] == [0.0] * 6
    assert [(row["op"], row["calls"]) for row in assumed()]


def test_C4_a_storage_of_elements_takes_memory_for_as_many() -> None:
    """FullyShardedDataParallel gives back and takes gathered parameters so."""
    with Estimator() as seen:
        flat = torch.empty(1000)
        flat._typed_storage()._resize_(0)
        assert flat._typed_storage()._size() == 0
        torch.ones(10)
        flat._typed_storage()._resize_(2000)
        assert flat._typed_storage()._size() in (1000, 2000)
        torch.ones(10)
    assert seen.report()["memory"]["peak_bytes"] == 8000 + 40


def test_C4_a_module_that_runs_nothing_without_data_is_no_mistake() -> None:
    with Estimator() as seen:
        for _ in range(2):
            nn.Softmax(-1)(torch.from_numpy(np.zeros((4, 4), np.float32)))
    assert not [text for text in seen.report()["warnings"] if "told apart" in text]


@pytest.mark.parametrize(("device", "told"), [("cuda", True), ("cpu", False)])
def test_C4_recurrent_layers_are_said_to_be_estimated_step_by_step(device: str, told: bool) -> None:
    with Estimator(target=known_targets.find("h100")) as seen:
        nn.Sequential(nn.GRU(4, 4)).to(device)(torch.ones(3, 1, 4, device=device))
        nn.Linear(2, 2, device="cuda")(torch.ones(1, 2, device="cuda"))
    assert any("step by step" in text for text in seen.report()["warnings"]) is told


def _said_of(layer: nn.Module) -> tuple[list[str], int]:
    """What is said of a recurrent layer on a GPU; bytes there after 5 steps of 4 sequences, without its weights."""
    with Estimator(target=known_targets.find("h100")) as seen:
        x = torch.ones(5, 4, 8, device=next(layer.cuda().parameters()).device)
        before = torch.cuda.memory_allocated()
        out = layer(x)
        after = torch.cuda.memory_allocated()
        del out
    return [text for text in seen.report()["warnings"] if "LSTM" in text or "step by step" in text], after - before


def test_C4_an_lstm_on_a_gpu_is_one_op_that_keeps_its_gates() -> None:
    """cuDNN keeps at least them for its backward pass."""
    said, training = _said_of(nn.LSTM(8, 32))
    assert (
        len(said) == 1
        and "each layer and direction of an LSTM is estimated as one op" in said[0]
        and "step by step" not in said[0]
    )
    with torch.no_grad():
        _, evaluating = _said_of(nn.LSTM(8, 32))
    assert training - evaluating >= 4 * 5 * 4 * 5 * 32


def test_C4_an_lstm_and_another_recurrent_layer_are_told_apart() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTM(8, 8), nn.GRU(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gru(self.lstm(x)[0])[0]

    first, second = _said_of(Both())[0]
    assert "LSTM" in first and second.startswith("other recurrent layers are estimated step by step")
    assert _said_of(nn.LSTM(8, 8, proj_size=4))[0][0].startswith("recurrent layers")


def test_C4_the_chosen_device_of_two_is_as_torchs_context_managers_say() -> None:
    with estimating(Accelerator("Test GPU", 10**9, count=2)):
        on_0, on_cpu = torch.ones(2, device="cuda"), torch.ones(2)
        with pytest.raises(KeyError), torch.cuda.device(1):
            assert torch.cuda.current_device() == 1
            for same in (None, -1):
                with torch.cuda.device(same):
                    assert torch.cuda.current_device() == 1
            with torch.cuda.device_of(on_cpu):
                assert torch.cuda.current_device() == 1
            with torch.cuda.device_of(on_0):
                assert torch.cuda.current_device() == 0
            assert torch.cuda.current_device() == 1
            raise KeyError
        assert torch.cuda.current_device() == 0
        assert issubclass(torch.cuda.device_of, torch.cuda.device)


def test_C4_a_module_may_be_made_in_what_torch_func_transforms() -> None:
    """Its weights were made past the transform, which refused to initialize them."""

    def loss(w: torch.Tensor) -> torch.Tensor:
        layer = torch.nn.Linear(4, 2)
        assert layer.weight.requires_grad and type(layer.weight) is torch.nn.Parameter
        return layer(w).sum()

    with estimating(Accelerator("Test GPU", 10**9)):
        assert torch.func.grad(loss)(torch.ones(4)).shape == (4,)
