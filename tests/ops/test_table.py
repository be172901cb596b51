"""House rule 1: one row per op, every name real, nothing listed twice."""

from __future__ import annotations

import collections

import torch
import torch.distributed.fsdp  # registers c10d's operators and its own
import torch.nn.functional as F

from mindtorch.base import torch_facts
from mindtorch.base.torch_names import RELEASES
from mindtorch.ops import ROWS, TAGS, op_name, row
from mindtorch.ops.flop_rules import elementwise
from mindtorch.ops.op_row import op
from mindtorch.ops.schema import tag as tag_of
from mindtorch.program import quantized

#: Families that are deliberately without rows: their calls are listed as uncounted.
OUTSIDE = (
    "_nested", "_sparse", "_test", "_validate", "fbgemm", "_cufft", "_fake_quantize", "fake_quantize", "_wrapped",
    "quantized", "sparse_", "to_sparse", "_histogramdd", "_cslt", "_convert", "mkldnn_linear_backward", "_spsolve",
    "_spdiags", "cudnn_affine", "_fused_moving", "fused_moving", "_make_per", "_jagged", "_padded", "_dyn_quant",
)  # fmt: skip

#: Ops in the table that not all releases have -> those that do.
SOME_HAVE = {"aten::_foreach_mm": RELEASES[1:], "aten::cholesky": RELEASES[:2], "aten::qr": RELEASES[:2]}


def schemas() -> dict[str, list]:
    found = collections.defaultdict(list)
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            found[schema.name].append(schema)
    return found


def test_rows_are_unique():
    twice = [name for name, count in collections.Counter(r.name for r in ROWS).items() if count > 1]
    assert not twice


def test_rows_name_real_ops_tags_and_functions():
    known = torch_facts.is_tested()
    absent = {name for name, having in SOME_HAVE.items() if known and torch_facts.release() not in having}
    quantized._operators()  # which registers ours, when a model has packed weights
    for found in ROWS:
        namespace, _, name = found.name.partition("::")
        if namespace == "torch" or name.startswith("__set"):
            assert any(hasattr(owner, name) for owner in (torch.Tensor, torch.autograd))
        elif namespace == "higher_order":
            assert hasattr(torch._higher_order_ops, name.replace("_backward", ""))
        else:
            there = hasattr(getattr(torch.ops, namespace), name)
            assert there != (found.name in absent), found.name
        assert found.tag in TAGS, found.name
        for function in found.python:
            assert op_name(getattr(F, function)) == found.name


def test_almost_every_op_of_torch_has_a_row():
    missing = []
    for name in schemas():
        overloads = getattr(getattr(torch.ops.aten, name[6:], None), "overloads", lambda: [])()
        dispatched = any(
            torch._C._dispatch_dump(name if o == "default" else f"{name}.{o}")
            for o in overloads
            if torch._C._dispatch_has_kernel(name if o == "default" else f"{name}.{o}")
        )
        if dispatched and row(name) is None and not name[6:].startswith(OUTSIDE):
            missing.append(name)
    assert len(missing) < 40, missing


def test_pointwise_ops_of_torch_are_elementwise():
    for name, overloads in schemas().items():
        found = row(name)
        packet = getattr(torch.ops.aten, name[6:], None)
        if found is None or packet is None or not overloads:
            continue
        tags = {tag for o in packet.overloads() for tag in getattr(packet, o).tags}
        if torch.Tag.view_copy in tags:
            assert found.tag == "data movement", name
        elif torch.Tag.reduction in tags:
            assert found.tag == "reduction", name
        elif torch.Tag.nondeterministic_seeded in tags:
            assert found.tag in ("random", "attention", "rnn", "elementwise", "other"), name
        elif torch.Tag.pointwise in tags and name != "aten::equal":
            # max and min are tagged for their binary overload; clone and positive only copy
            copies = ("aten::clone", "aten::positive")
            assert found.tag in ("elementwise", "reduction", "random") or name in copies, name


def test_writes_are_arguments_the_schema_calls_read_only():
    expected = {"running_mean", "running_var", "saved_mean", "saved_inv_std"}
    for found in ROWS:
        for schema in schemas()[found.name] if found.writes else ():
            for index in found.writes:
                argument = schema.arguments[index]
                assert argument.name in expected, (found.name, argument.name)
                assert argument.alias_info is None, f"{found.name}: torch says it now"


def test_batch_norm_writes_its_statistics_unsaid():
    """The reason for `writes`: true of torch 2.13; tells us when torch changes."""
    mean, var = torch.zeros(3), torch.ones(3)
    torch.ops.aten.native_batch_norm(torch.randn(4, 3), None, None, mean, var, True, 0.1, 1e-5)
    assert mean.abs().sum() > 0
    assert row("aten::native_batch_norm").writes == (3, 4)


def test_C3_no_row_says_what_torch_says_alone():
    told = [found.name for found in ROWS if (tag := tag_of(found.name))
            and found == op(found.name, tag, elementwise if tag == "elementwise" else None)]  # fmt: skip
    assert told == []
    known = {"mul": "elementwise", "view": "view", "unbind": "view", "t_copy": "data movement"}
    for name, tag in known.items():
        found = row(f"aten::{name}")
        assert not any(each.name == f"aten::{name}" for each in ROWS)
        assert found.tag == tag
    assert row("aten::mul_") is row("aten::mul") and row("aten::mul").flops is elementwise
    assert row("aten::cuda") is row("mine::mul") is row("aten::view.name") is row("aten::name") is None


def test_in_place_shares_the_row():
    assert row("aten::add_") is row("aten::add")
    assert row("aten::nothing_") is None
