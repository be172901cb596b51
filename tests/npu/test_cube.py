"""N5: matrix products and convolutions on chips whose cube unit has no float32, and on those that have it."""

from __future__ import annotations

import pytest

# Two of each are tried, all with ``--whole``: which chip has what, tests/npu/test_chips.py asks for each.
WITHOUT = ["Ascend310P3", "Ascend910A", "Ascend910B", "Ascend910ProB"]
WITH = ["Ascend910B1", "Ascend950PR", "Ascend910_9391", "Ascend310B1"]


PRODUCTS = """
    import os, warnings, torch, mindtorch
    from acl_library import Library
    library = Library(os.environ["GENIE_ACL_LIBRARY"])
    torch.manual_seed(0)
    a, b, c = (torch.randn(3, 3) + 1e-4 for _ in range(3))
    image, window = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)

    def backward(image, window):
        image, window = image.detach().requires_grad_(), window.detach().requires_grad_()
        out = torch.nn.functional.conv2d(image, window)
        out.backward(torch.arange(-13.0, 14).reshape(out.shape).to(out.device))  # which are numbers of float16
        return torch.cat((image.grad.flatten(), window.grad.flatten()))

    PRODUCTS = {
        "mm": (torch.mm, (a, b)), "bmm": (torch.bmm, (a[None], b[None])), "matmul": (torch.matmul, (a[None], b)),
        "addmm": (lambda a, b: torch.addmm(c.to(a.device), a, b), (a, b)),
        "convolution": (torch.nn.functional.conv2d, (image, window)),
        "convolution_backward": (backward, (image, window)),
    }
    def asked():
        return sum(library.calls(f"aclnn{name}GetWorkspaceSize") for name in (
            "Mm", "BatchMatMul", "Matmul", "Addmm", "Convolution", "ConvolutionBackward"))

    NAMES = sorted({*PRODUCTS} - {"matmul"})  # which comes as one of the others

    def ran(kind):
        return [name for name in NAMES if mindtorch.stats()[kind].get("aten::" + name)]

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            for name, (product, operands) in PRODUCTS.items():
                found = product(*(each.npu() for each in operands)).cpu()
                check(name, found, product(*operands), product(*(each.half().float() for each in operands)))
"""


def _with_check(check: str) -> str:
    return PRODUCTS.replace(
        "    PRODUCTS = {", f"    def check(name, found, expected, short):\n{check}\n\n    PRODUCTS = {{"
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("chip", WITHOUT)
def test_N5_products_of_float32_run_on_chips_without_them_and_it_is_said_once(in_npu_program, chip):
    check = """
        assert found.dtype is torch.float32 and not torch.equal(found, expected), name
        torch.testing.assert_close(found, short, msg=name)
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.05, msg=name)"""
    said = in_npu_program(
        _with_check(check)
        + """
    print(ran("npu_native") == NAMES, ran("npu_staged"))
    print(*(each.message for each in said))
        """,
        GENIE_TEST_NPU_CHIP=chip,
    ).splitlines()
    warned = (
        f"{chip} has no float32 matrix products: they are computed from float16. torch.npu.set_option("
        "{'ACL_PRECISION_MODE': 'must_keep_origin_dtype'}) computes them on the CPU instead"
    )
    assert said == ["True []", warned]


@pytest.mark.sample(2)
@pytest.mark.parametrize("chip", WITHOUT)
def test_N5_a_program_that_must_keep_float32_has_the_cpus_products(in_npu_program, chip):
    """The operators are not asked: they would refuse each time."""
    check = """
        assert torch.equal(found, expected), name"""
    said = in_npu_program(
        _with_check(check).replace(
            "    with warnings",
            """    mindtorch.npu.set_option({"ACL_PRECISION_MODE": "must_keep_origin_dtype"})
    with warnings""",
        )
        + """
    print(ran("npu_native"), ran("npu_staged") == NAMES, asked(), *said)
    mindtorch.npu.set_option({"ACL_PRECISION_MODE": "allow_fp32_to_fp16"})
    torch.mm(a.npu(), b.npu())
    print(ran("npu_native"), asked())
        """,
        GENIE_TEST_NPU_CHIP=chip,
    ).splitlines()
    assert said == ["[] True 0", "['mm'] 1"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("chip", WITH)
def test_N5_products_of_float32_keep_their_bits_on_chips_that_have_them(in_npu_program, chip):
    check = """
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=name)
        assert not torch.allclose(found, short, rtol=1e-5, atol=1e-5), name"""
    said = in_npu_program(
        _with_check(check)
        + """
    print(ran("npu_native") == NAMES, ran("npu_staged"), *said)
        """,
        GENIE_TEST_NPU_CHIP=chip,
    )
    assert said == "True []\n"


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("chip", ["Ascend310P3", "Ascend910_9391"])
def test_N5_products_of_16_bits_are_what_the_chip_has(in_npu_program, chip, dtype):
    """The first phase refuses bfloat16 on a chip without it, once for each call that differs."""
    said = in_npu_program(
        f"""
        import os, torch, mindtorch
        from acl_library import Library
        library = Library(os.environ["GENIE_ACL_LIBRARY"])
        x = torch.randn(4, 4).to(torch.{dtype})
        for _ in range(3):
            torch.testing.assert_close((x.npu() @ x.npu()).cpu(), x @ x)
        print(library.calls("aclnnMmGetWorkspaceSize") + library.calls("aclnnMatmulGetWorkspaceSize"))
        """,
        GENIE_TEST_NPU_CHIP=chip,
    )
    assert said == ("1\n" if (chip, dtype) == ("Ascend310P3", "bfloat16") else "3\n")
