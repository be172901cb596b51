"""What devices do that a kind library does not: each test turns it on in a process of its own (SPEC N7)."""

from __future__ import annotations

import itertools
import os
import re
import sys
import textwrap
from pathlib import Path

import acl_library
import pytest

from mindtorch.npu import kernel_rows, kernels, layers, operators, scaling


def test_N2_what_operators_write_behind_their_operands_is_nobodys(in_npu_program):
    """A tensor's last bytes are followed by ALIGN_UP(size, 32) + 32 - size that operators may touch."""
    said = in_npu_program(
        """
        import torch, mindtorch
        for size in (1, 120, 127, 128, 136, 1000, (1 << 18) - 8, 1 << 18, (2 << 20) // 4 * 5 - 8, (2 << 20) // 4 * 5):
            held = [torch.full((size,), float(i)).npu() for i in range(4)]
            total = held[1] + held[2]
            held[2].mul_(2)
            values = [sorted(set(each.cpu().tolist())) for each in [*held, total]]
            assert values == [[0], [1], [4], [3], [3]], (size, [each[:3] for each in values])
        print(mindtorch.stats()["npu_native"]["aten::add"])
        """,
        GENIE_TEST_NPU_SCRIBBLE="1",
    )
    assert said == "10\n"


def test_N3_a_stream_waits_for_another_devices_event_where_chips_do_not(in_npu_program):
    """Copies, streams and events of two devices: the values are right, and the library's checker saw them ordered."""
    said = in_npu_program(
        """
        import os, torch, mindtorch
        from acl_library import Library
        library, npu = Library(os.environ["GENIE_ACL_LIBRARY"]), mindtorch.npu
        one, two = npu.Stream(0), npu.Stream(1)
        x = torch.arange(1000.0).npu(0)
        npu.synchronize(0)
        for _ in range(10):
            library.stall(one.npu_stream, 20)
            with npu.stream(one):
                y = x + 1
                with npu.stream(two):
                    z = y.to("npu:1") * 2  # read on one, written on two
                event = one.record_event()
            two.wait_event(event)
            two.wait_stream(one)
            assert npu.current_stream(0).query()
            two.synchronize()
            assert torch.equal(z.cpu(), (torch.arange(1000.0) + 1) * 2)
        print(library.calls("aclrtSynchronizeEvent") >= 10)
        """,
        GENIE_TEST_NPU_FOREIGN_WAITS="0",
    )
    assert said == "True\n"


# Each device's value comes from the one before it, whose stream sleeps before it makes it. One process for each set of
# settings: the library reads them as it is loaded, and the pool decides once.
AROUND = """
    import os, traceback
    from acl_library import Library
    from device_memory import block_of, get
    from mindtorch import npu
    from mindtorch._ext import blocks

    def around(count):
        library = Library(os.environ["GENIE_ACL_LIBRARY"])
        streams = [npu.Stream(i) for i in range(count)] if count > 1 else [npu.Stream(0), npu.Stream(0)]
        held = [block_of(stream.device_index, bytes(100)) for stream in streams]
        for i in range(count):
            npu.synchronize(i)
        for i, stream in enumerate(streams):
            after = (i + 1) % len(streams)
            later, here, there = streams[after], held[i], held[after]
            library.stall(stream.npu_stream, 10)
            with stream:
                blocks.fill(here, 0, i + 1, 100)
                event = stream.record_event()
                if i % 3 == 0:
                    later.wait_event(event)
                elif i % 3 == 1:
                    later.wait_stream(stream)
            with later:
                if i % 3 == 2:
                    event.wait()
                copy = blocks.allocate(later.device_index, 100)
                with stream:  # the copy waits for the current streams of both devices
                    with later:
                        blocks.copy_across(copy, 0, here, 0, 100)
                        blocks.fill(there, 0, 99, 100)
                assert get(copy) == bytes([i + 1]) * 100, (i, get(copy)[:1])
                assert event.query(), "what comes after the wait was over before what it waits for"
        waits = library.calls("aclrtStreamWaitEvent") > 0, library.calls("aclrtSynchronizeEvent") > 0
        problems = library.violations()
        assert problems == [], problems
        return waits

    def in_fork(count, **environment):
        process = os.fork()
        if process:
            assert os.waitpid(process, 0)[1] == 0, (count, environment)
            return
        os.environ.update(environment, GENIE_TEST_NPU_DEVICES=str(count))
        try:
            print(count, *environment.values(), *around(count), flush=True)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
"""
CAN, CANNOT = ["Ascend910B1", "Ascend910_9391"], ["Ascend910B", "Ascend910A", "Ascend310P3"]
BELOW, KNOWN = ["0", "80500000", "90199801"], ["90200000", "100000000"]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_N4_what_another_device_works_on_is_waited_for_on_every_chip_and_runtime(in_npu_process, whole, count):
    """A wait that the runtime does not do says that it did: only a known runtime, on a known chip, is asked for it.

    All but a runtime from 9.2 on whose streams do not wait on chips that can: there is none.
    """
    every = [
        (chip, waits, runtime)
        for chip, waits, runtime in itertools.product(CAN + CANNOT, "01", BELOW + KNOWN)
        if waits == "1" or chip in CANNOT or runtime in BELOW
    ]
    assert len(every) == 46
    every = every if whole or count == 2 else every[count % 3 :: 3]  # what they decide has nothing to do with count
    said = in_npu_process(
        AROUND
        + f"""
    for chip, waits, runtime in {every}:
        in_fork({count}, GENIE_TEST_NPU_CHIP=chip, GENIE_TEST_NPU_FOREIGN_WAITS=waits, GENIE_TEST_NPU_RUNTIME=runtime)
    npu.init()
        """,
        devices=count,
    )
    asked = [chip in CAN and runtime in KNOWN for chip, _, runtime in every]
    assert said.splitlines() == [
        f"{count} {' '.join(each)} {count == 1 or asks} {count > 1 and not asks}"
        for each, asks in zip(every, asked, strict=True)
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize("missing", ["aclrtRecordEventWithFlag", "aclsysGetVersionNum"])
def test_N4_a_version_of_another_installation_is_not_the_runtimes(in_npu_process, tmp_path, missing):
    """ASCEND_HOME_PATH names what the version is told of; a library without what came after these waits is older."""
    older = acl_library.build(tmp_path, f"-D{missing}=absent_{missing}")
    said = in_npu_process(
        AROUND + "    print(*around(2))",
        path=older,
        GENIE_TEST_NPU_FOREIGN_WAITS="0",
        GENIE_TEST_NPU_RUNTIME="90200000",
    )
    assert said == "False True\n"


def test_N3_events_are_used_again_where_a_device_has_few(in_npu_process):
    """Those that programs and the allocator let go of are, once their work is over; those that they keep are not."""
    said = in_npu_process(
        """
        import os
        from acl_library import Library
        from device_memory import block_of, get
        from mindtorch import npu
        from mindtorch._ext import blocks
        library = Library(os.environ["GENIE_ACL_LIBRARY"])
        one, two, far = npu.Stream(0), npu.Stream(0), npu.Stream(1)
        for i in range(40):
            library.stall(one.npu_stream, 5)
            with one:
                block = blocks.allocate(0, 1000)
                blocks.fill(block, 0, i, 1000)
            for other in (two, far):
                other.wait_stream(one)
                other.wait_event(one.record_event())
            one.wait_stream(far)
            with two:
                copy = blocks.allocate(0, 1000)
                blocks.copy_within(copy, 0, block, 0, 1000)
                del block
                if i % 10 == 9:
                    assert get(copy) == bytes([i]) * 1000
        held = []
        try:
            for i in range(100):
                held.append(one.record_event())
        except RuntimeError as error:
            print(error, error.code == 207007, len(held) > 2)
        npu.synchronize(0)
        assert all(event.query() for event in held)
        held.pop()
        one.record_event().synchronize()
        print(library.calls("aclrtSynchronizeDevice") > 2)
        """,
        GENIE_TEST_NPU_EVENTS="6",
    ).splitlines()
    function, name = "aclrtCreateEventExWithFlag", "ACL_ERROR_RT_NO_EVENT_RESOURCE"
    refused = f"[{function}] error 207007 ({name}): {function}: device 0 has no more than 6 events"
    assert said == [f"{refused} True True", "True"]


def test_N3_events_that_nobody_uses_make_room_for_those_of_the_other_kind(in_npu_process):
    said = in_npu_process(
        """
        from mindtorch import npu
        stream = npu.Stream(0)
        for timing in (False, True, False):
            events = [npu.Event(enable_timing=timing) for _ in range(6)]
            for event in events:
                event.record(stream)
            npu.synchronize(0)
            del event, events
        print("done")
        """,
        GENIE_TEST_NPU_EVENTS="6",
    )
    assert said.split() == ["done"]


def test_N3_streams_are_handed_out_again_sooner_where_a_device_has_few(in_npu_process):
    said = in_npu_process(
        """
        from mindtorch import npu
        made = [npu.Stream(0) for _ in range(9)]  # the context has a stream of its own, the pool its default one
        print([made.index(each) for each in made])
        for each in made:
            each.record_event().synchronize()
        try:
            npu.Stream(0, -1)
        except RuntimeError as error:
            print(error)
        print(npu.Stream(0) in made, npu.Stream(1, -1).priority)
        """,
        GENIE_TEST_NPU_STREAMS="5",
    ).splitlines()
    function, name = "aclrtCreateStreamWithConfig", "ACL_ERROR_RT_NO_STREAM_RESOURCE"
    refused = f"[{function}] error 207008 ({name}): {function}: device 0 has no more than 5 streams"
    assert said == ["[0, 1, 2, 0, 1, 2, 0, 1, 2]", refused, "True -1"]


@pytest.mark.parametrize("early", ["0", "1"])
def test_N1_devices_are_counted_before_the_library_is_initialized_where_it_can_do_so(in_npu_process, early):
    """What it says where it cannot, and what it says of figures that it does not tell, is not told with an error."""
    said = in_npu_process(
        """
        import os
        from acl_library import Library
        from mindtorch import npu
        from mindtorch._ext import blocks
        print(npu.device_count(), npu.is_initialized())
        library = Library(os.environ["GENIE_ACL_LIBRARY"])
        library.fail("aclGetDeviceCapability", 1, 100000)
        assert npu.get_device_properties(0).cube_core_num is None
        library.fail("aclrtMallocAlign32", 1, 507899)
        try:
            blocks.allocate(0, 100)
        except RuntimeError as error:
            print(error.detail)
        """,
        GENIE_TEST_NPU_COUNT=early,
        GENIE_TEST_NPU_KEEP_TEXT="1",
        ASCEND_RT_VISIBLE_DEVICES="0,1",  # so that the driver is not asked
    )
    assert said == f"2 {early == '0'}\naclrtMallocAlign32: injected fault 507899\n"


DECLINING = """
    import os, torch, mindtorch, warnings
    from acl_library import Library
    warnings.simplefilter("always")
    library = Library(os.environ["GENIE_ACL_LIBRARY"])
    x = torch.arange(4.0).npu()

    def calls():
        return library.calls("aclnnAddGetWorkspaceSize")

    with warnings.catch_warnings(record=True) as said:
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("code", [161003, 561000, 561003, 561103, 561107, 561112])
def test_N5_an_operator_that_is_not_here_is_staged_and_not_asked_again(in_npu_program, code):
    said = in_npu_program(
        DECLINING
        + """
        assert (x + x).tolist() == (x + x).add(0).tolist() == [0, 2, 4, 6]
        asked = calls()
        assert (x + x).tolist() == [0, 2, 4, 6] and calls() == asked
        assert (x.half() + x.half()).tolist() == [0, 2, 4, 6] and calls() == asked + 1  # other dtypes may be there
    about_add = [str(each.message) for each in said if "[aclnnAdd]" in str(each.message)]
    print(len(about_add), about_add[0])
    print(mindtorch.stats()["npu_staged"]["aten::add"], mindtorch.stats()["npu_native"].get("aten::add"))
        """,
        GENIE_TEST_NPU_DECLINE=str(code),
        GENIE_TEST_NPU_KEEP_TEXT="1",
    )
    warned, counted = said.rstrip().rsplit("\n", 1)
    assert warned.startswith("1 [aclnnAdd] runs through the CPU where the NPU has no kernel for its operands: error ")
    assert f"error {code} (" in warned and warned.endswith("aclnnAddGetWorkspaceSize: aclnnAdd is not on this chip")
    assert counted == "5 None"


@pytest.mark.parametrize("code", [161001, 161002])
def test_N5_a_call_that_an_operator_does_not_take_is_warned_of_and_not_asked_again(in_npu_program, code):
    """Other sizes, strides, dtypes and numbers may be taken, and are asked for; a fault in between is none of it."""
    said = in_npu_program(
        DECLINING
        + """
        for _ in range(3):
            assert (x + x).tolist() == [0, 2, 4, 6]
        asked = [calls()]
        for other in (lambda: x[:2] + x[:2], lambda: x[::2] + x[::2], lambda: x.half() + x.half(),
                      lambda: torch.add(x, x, alpha=3), lambda: torch.add(x, x, alpha=3.0)):
            for _ in range(2):
                other()
            asked.append(calls())
    print(asked, len([each for each in said if "[aclnnAdd]" in str(each.message)]))
    print(*{str(each.message) for each in said if "[aclnnAdd]" in str(each.message)})
        """,
        GENIE_TEST_NPU_DECLINE=str(code),
    ).splitlines()
    name = {161001: "ACLNN_ERR_PARAM_NULLPTR", 161002: "ACLNN_ERR_PARAM_INVALID"}[code]
    warned = (
        f"[aclnnAdd] runs through the CPU where the NPU does not take its parameters: error {code} ({name}): "
        "aclnnAddGetWorkspaceSize: aclnnAdd is not on this chip"
    )
    assert said == ["[1, 2, 3, 4, 5, 6] 1", warned]


def test_N5_a_fault_in_a_first_phase_is_raised(in_npu_program):
    said = in_npu_program(
        DECLINING
        + """
        for code in (361001, 507018, 107003):
            library.fail("aclnnAddGetWorkspaceSize", 1, code)
            try:
                x + x
            except RuntimeError as error:
                print(error.code, error.function, error.name)
        """
    )
    assert said.splitlines() == [
        "361001 aclnnAddGetWorkspaceSize ACLNN_ERR_RUNTIME_ERROR",
        "507018 aclnnAddGetWorkspaceSize ACL_ERROR_RT_AICPU_EXCEPTION",
        "107003 aclnnAddGetWorkspaceSize ACL_ERROR_RT_STREAM_CONTEXT",
    ]


def test_N5_the_text_of_what_was_declined_is_not_told_with_the_next_error(in_npu_program):
    said = in_npu_program(
        DECLINING
        + """
        library.fail("aclnnAddGetWorkspaceSize", 1, 161002)
        x + x
        library.fail("aclrtSynchronizeStream", 1, 507054)
        try:
            mindtorch.npu.current_stream().synchronize()
        except RuntimeError as error:
            print(str(error).partition("; caused by a call in flight")[0])
        """,
        GENIE_TEST_NPU_KEEP_TEXT="1",
    )
    assert said == (
        "[aclrtSynchronizeStream] error 507054 (ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR): "
        "aclrtSynchronizeStream: injected fault 507054\n"
    )


def test_N5_operators_of_several_libraries_are_found(in_npu_program, tmp_path):
    library = acl_library.build_split(tmp_path)
    code = """
        import torch, mindtorch
        x = torch.ones(2, 2).npu()
        assert torch.equal(((x + x) @ x).cpu(), torch.full((2, 2), 4.0))
        print(*(mindtorch.stats()["npu_native"].get(name) for name in ("aten::add", "aten::mm")))
    """
    assert in_npu_program(code, path=library) == "1 1\n"
    (tmp_path / "libopapi_math.so").rename(tmp_path / "libopapi.so")  # as it was called before
    assert in_npu_program(code, path=library) == "1 1\n"
    (tmp_path / "libopapi_nn.so").unlink()
    assert in_npu_program(code, path=library) == "1 None\n"
    customers = tmp_path / "customize" / "op_api" / "lib"
    customers.mkdir(parents=True)
    (customers / "libascendcl.so").symlink_to(library)
    (tmp_path / "libopapi.so").rename(customers / "libcust_opapi.so")
    assert in_npu_program(code, path=library) == "None None\n"
    added = f"import os; os.environ['ASCEND_CUSTOM_OPP_PATH'] = '/nowhere::{customers.parent.parent}'\n"
    assert in_npu_program(added + textwrap.dedent(code), path=library) == "1 None\n"
    (tmp_path / "vendors").mkdir()
    (tmp_path / "vendors" / "config.ini").write_text("load_priority=other,customize\n")
    (tmp_path / "customize").rename(tmp_path / "vendors" / "customize")
    added = f"import os; os.environ['ASCEND_OPP_PATH'] = '{tmp_path}'\n"
    assert in_npu_program(added + textwrap.dedent(code), path=library) == "1 None\n"


def test_N5_the_operators_that_are_told_of_are_those_that_kernels_call():
    source = "".join(Path(each.__file__).read_text() for each in (kernels, layers, kernel_rows, scaling))
    asked = set(re.findall(r'aclnn\.(?:call|available)\(\s*"(\w+)"', source)) | {
        row.operator for row in kernel_rows.ROWS.values()
    }
    named = set(re.findall(r'"([A-Z]\w+)"', source)) | {f"{each}s" for each in ("Add", "Sub", "Mul", "Div")}
    assert asked <= set(operators.OPERATORS) <= asked | named


def test_N2_the_end_of_a_process_does_not_wait_for_a_stream_without_end(in_python, acl_path):
    code = """
        import os, sys
        sys.argv = ["genie"]
        from mindtorch import npu
        from mindtorch._ext import blocks, pool
        from acl_library import Library
        block = blocks.allocate(0, 100)
        Library(os.environ["GENIE_ACL_LIBRARY"]).hold(npu.current_stream(0).npu_stream)
        blocks.fill(block, 0, 1, 100)
        pool.shutdown(100)
        try:
            npu.synchronize(0)
        except RuntimeError as error:
            print(error)
    """
    done = in_python(
        textwrap.dedent(code),
        GENIE_ACL_LIBRARY=str(acl_path),
        PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    )
    assert done.stdout == "the NPU runtime has been shut down: the process is ending\n"


def test_N3_nothing_runs_on_a_stream_behind_work_that_failed(in_npu_program):
    """A kernel's failure is told by the next wait; what was queued behind it has not gone on with its result."""
    said = in_npu_program(
        """
        import torch, mindtorch
        table, wrong = torch.ones(3, 2).npu(), torch.tensor([7]).npu()
        x = torch.zeros(2).npu()
        mindtorch.npu.synchronize()
        found = torch.nn.functional.embedding(wrong, table)
        x.add_(1)
        try:
            mindtorch.npu.synchronize()
        except RuntimeError as error:
            print(error.code, error.name)
        print(x.tolist())
        """
    )
    assert said.splitlines() == ["507015 ACL_ERROR_RT_AICORE_EXCEPTION", "[0.0, 0.0]"]


def test_N3_a_device_that_runs_nothing_more_after_a_failure_says_so_each_time(in_npu_program):
    """As CANN with stop-on-failure. Memory can still be let go of, other devices go on, and the process ends."""
    said = in_npu_program(
        """
        import torch, mindtorch
        table, wrong, x = torch.ones(3, 2).npu(), torch.tensor([7]).npu(), torch.zeros(2).npu()
        there, stream = torch.ones(2).npu(1), mindtorch.npu.Stream(0)
        mindtorch.npu.synchronize()
        found = torch.nn.functional.embedding(wrong, table)
        uses = [mindtorch.npu.synchronize, lambda: x + 1, x.tolist, stream.synchronize, lambda: torch.ones(2).npu(),
                stream.record_event, lambda: x.npu(1), mindtorch.npu.empty_cache]
        for use in uses:
            try:
                use()
            except RuntimeError as error:
                print(error.code, error.function)
        del found, table, x
        print((there + there).tolist())
        """,
        GENIE_TEST_NPU_STAYS_BROKEN="1",
    )
    *failed, other = said.splitlines()
    assert other == "[2.0, 2.0]" and len(failed) == 8 and {line.split()[0] for line in failed} == {"507015"}
