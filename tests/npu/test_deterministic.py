"""N5: ``torch.use_deterministic_algorithms`` is told to CANN, whose operators would else give results that vary."""

from __future__ import annotations

import acl_library
import pytest

from mindtorch.npu import operators

CALLS = """
    import os, torch, mindtorch
    from acl_library import Library
    library = Library(os.environ["GENIE_ACL_LIBRARY"])
    x = torch.randn(2, 3, 6, 6)
    norm = torch.nn.BatchNorm2d(3)

    def varying(x, norm):
        "Every operator that is documented to vary, and the loss."
        x = x.detach().requires_grad_()
        y = torch.nn.functional.max_pool2d(torch.conv2d(norm(x), torch.ones(3, 3, 2, 2, device=x.device)), 2)
        y = torch.nn.functional.adaptive_avg_pool2d(y, (2, 1)).flatten(1)
        table = torch.ones(4, 3, device=x.device, requires_grad=True)
        places = torch.tensor([1, 2], device=x.device)
        y = torch.addmm(torch.nn.functional.embedding(places, table), y, torch.ones(6, 3, device=x.device))
        loss = torch.nn.functional.cross_entropy(y, places) + torch.linalg.vector_norm(y)
        loss.backward()
        return loss.detach(), x.grad, table.grad

    def first_phases():
        return sum(library.calls(f"aclnn{name}GetWorkspaceSize") for name in mindtorch.npu.operators.OPERATORS)

    def run(where="npu"):
        library.clear()
        mindtorch.npu.counts.staged_counts.clear()
        return varying(x.to(where), norm.to(where))
"""


def test_N5_cann_is_told_that_results_must_not_vary_once_for_each_device(in_npu_program):
    said = in_npu_program(
        CALLS
        + """
    plain = run()
    print(library.calls("deterministic"), library.calls("aclrtCtxSetSysParamOpt"))
    for where, told in (("npu:0", 1), ("npu:0", 0), ("npu:1", 1)):
        torch.use_deterministic_algorithms(True)
        run(where)
        assert library.calls("deterministic") == first_phases() > 10, where
        assert library.calls("aclrtCtxSetSysParamOpt") == told, where
        missing = [name for name in mindtorch.npu.operators.VARYING if not library.calls(f"aclnn{name}")]
        assert missing == [], missing
    torch.use_deterministic_algorithms(False)
    run("npu:1")
    print(library.calls("deterministic"), library.calls("aclrtCtxSetSysParamOpt"))
    run("npu:0")
    print(library.calls("deterministic"), library.calls("aclrtCtxSetSysParamOpt"))
    torch.use_deterministic_algorithms(True, warn_only=True)
    run()
    print(library.calls("deterministic") == first_phases())
        """
    )
    assert said.splitlines() == ["0 0", "0 1", "0 1", "True"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["missing", "refused"])
def test_N5_what_may_vary_runs_through_the_cpu_where_cann_cannot_be_told(in_npu_program, acl_path, tmp_path, how):
    option = "aclrtCtxSetSysParamOpt"
    path = acl_library.build(tmp_path, f"-D{option}=absent_{option}") if how == "missing" else acl_path
    said = in_npu_program(
        CALLS
        + f"""
    run()
    assert "aten::addmm" not in mindtorch.stats()["npu_staged"]
    torch.use_deterministic_algorithms(True)
    library.fail("{option}", 1, 207000)
    mindtorch.npu.counts.staged_counts.clear()
    found = varying(x.npu(), norm.npu())
    torch.testing.assert_close([each.cpu() for each in found], list(varying(x, norm.cpu())), rtol=1e-3, atol=1e-3)
    print(*sorted(mindtorch.npu.counts.staged_counts))
    torch.use_deterministic_algorithms(False)
    run()
    print(*mindtorch.npu.counts.staged_counts)
        """,
        path=path,
    ).splitlines()
    staged = "_adaptive_avg_pool2d_backward addmm convolution_backward embedding_dense_backward linalg_vector_norm "
    staged += "max_pool2d_with_indices_backward native_batch_norm native_batch_norm_backward nll_loss_forward"
    assert said == [" ".join(f"aten::{name}" for name in staged.split()), ""]


def test_N5_a_fault_in_telling_cann_is_raised(in_npu_program):
    said = in_npu_program(
        CALLS
        + """
    one = torch.ones(2).npu()
    torch.use_deterministic_algorithms(True)
    library.fail("aclrtCtxSetSysParamOpt", 1, 507899)
    try:
        one + one
    except RuntimeError as error:
        print(error.function, error.code)
    print((one + one).tolist(), library.calls("deterministic"))
        """
    )
    assert said.splitlines() == ["aclrtCtxSetSysParamOpt 507899", "[2.0, 2.0] 1"]


def test_N5_what_may_vary_is_named_as_an_operator():
    assert set(operators.OPERATORS) >= operators.VARYING
