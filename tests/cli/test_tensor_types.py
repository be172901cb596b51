"""C9, C4: ``torch.cuda.FloatTensor`` and its like, which older programs choose where CUDA is available."""

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli

PROGRAM = """
    import numpy as np
    import torch

    cuda = torch.cuda.is_available()
    Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
    Long = torch.cuda.LongTensor if cuda else torch.LongTensor
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2).type(Tensor)
    x = torch.arange(6).reshape(2, 3).type(Tensor)
    read = torch.from_numpy(np.ones((2, 2))).type(Tensor)
    valid = Tensor(2, 1).fill_(1.0)
    target = Long(np.array([0, 1]))
    loss = torch.nn.functional.cross_entropy(net(x), target) + valid.sum()
    loss.backward()
    print(x.dtype, valid.tolist(), target.tolist(), loss.item(), net.weight.grad.tolist())
    print(isinstance(read, Tensor), read.dtype, isinstance(x, Tensor), isinstance(target, Tensor), Tensor.dtype)
    print(isinstance(x.cpu(), Tensor) is not cuda)
    print(x.type() == f"{Tensor.__module__}.{Tensor.__name__}", x.type(x.type()).type() == x.type())
    print(x.type(torch.FloatTensor).type(), x.type("torch.DoubleTensor").type(), x.type(torch.float16).dtype)
    print(Tensor().shape, Tensor(torch.Size([2, 1])).shape, Tensor([[1, 2]]).tolist(), Tensor(x).data_ptr() != 0)
    try:
        Tensor(target)
    except TypeError as error:
        print(type(error).__name__)

    torch.set_default_tensor_type(Tensor if not cuda else "torch.cuda.DoubleTensor")
    print(torch.ones(2).is_cuda is cuda, torch.arange(2).is_cuda is cuda)
    torch.set_default_tensor_type("torch.FloatTensor")
    print(torch.ones(2).type(), torch.tensor([1.0]).dtype)
    try:
        torch.set_default_tensor_type(Long)
    except TypeError as error:
        print("only floating-point types" in str(error))
"""


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_C9_types_of_cuda_are_types_on_the_device(runs):
    """It asked for a driver: "Found no NVIDIA driver on your system"."""
    plain, under = runs.both(PROGRAM, options=("--map", "cuda"))
    assert under.code == plain.code == 0 and under.out == plain.out, under.err


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_C10_an_estimate_knows_types_of_cuda(runs):
    """`genie check` said "ValueError: invalid type: 'FloatTensor'", and that the accelerator may take it."""
    name = runs.write(PROGRAM)
    done = CliRunner().invoke(cli, ["check", "--target", "l4", name], prog_name="genie")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[1:4] == ["True torch.float32 True False torch.float32", "True", "True True"], lines
    assert lines[4].startswith("torch.FloatTensor torch.DoubleTensor") and lines[-2] == "True", lines


MADE_BY_OLD_CONSTRUCTORS = """
    import torch

    if torch.cuda.is_available():
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    far = torch.Tensor([1e10]).expand(2, 1)
    y = torch.cat([net(torch.ones(2, 3)), far], -1)
    (y[:, :2] * torch.Tensor(2, 2).fill_(3.0)).sum().backward()
    print(y.tolist(), net.weight.grad.tolist())
    torch.set_default_tensor_type("torch.FloatTensor")
    try:
        print(torch.cat([y.detach().sum().view(1), torch.ones(1)]).shape, torch.cuda.is_available())
    except RuntimeError as error:
        print("two devices" in str(error))
"""


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_C9_what_old_constructors_make_joins_the_device_that_is_the_default_type_s(runs):
    """nerf-pytorch ended with "found at least two devices": torch makes them on CUDA then."""
    plain, under = runs.both(MADE_BY_OLD_CONSTRUCTORS, options=("--map", "cuda"))
    assert under.code == plain.code == 0, under.err
    assert under.out.splitlines() == [plain.out.splitlines()[0], "True"], under.out  # afterwards, they are apart again
