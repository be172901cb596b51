"""N1, N6, N7: finding and binding the AscendCL library, its errors, and standing aside for torch_npu."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

import acl_library
import pytest
import torch
from device_memory import block_of, get

from mindtorch._ext import acl, blocks, pool
from mindtorch.base.errors import NPUError, NPUOutOfMemoryError

OPTIONAL = [
    "aclFinalizeReference", "aclGetRecentErrMsg", "aclrtGetSocName", "aclrtGetVersion", "aclrtCreateStreamWithConfig",
    "aclrtStreamQuery", "aclrtCreateEventWithFlag", "aclrtCreateEventExWithFlag", "aclrtMallocAlign32",
    "aclrtMemsetAsync", "aclGetDeviceCapability", "drvGetDevNum", "aclrtQueryEventStatus", "aclsysGetVersionNum",
    "aclrtRecordEventWithFlag",
]  # fmt: skip
TRY = """
    import sys; sys.argv = ["genie"]  # which imports torch only where it must: that takes seconds
    import mindtorch
    print(mindtorch.npu.is_available(), mindtorch.npu.device_count(), mindtorch.npu.why_unavailable())
    try:
        mindtorch.npu.init()
    except RuntimeError as error:
        print(error)
"""


def without(folder, *functions):
    """The test library without these functions."""
    return acl_library.build(folder, *(f"-D{name}=absent_{name}" for name in functions))


def test_N1_no_library_is_no_error_until_it_is_used(after_a_step):
    said = after_a_step(
        """
    import mindtorch, torch
    assert (torch.ones(2) + 1).tolist() == [2, 2]
    assert mindtorch.npu.current_device() == 0 and mindtorch.npu.memory_allocated() == 0
    """
        + TRY
    ).stdout
    assert said.startswith("False 0 libascendcl.so not found (looked in ")
    assert "/usr/local/Ascend/ascend-toolkit/latest/lib64, the loader's own path)" in said
    assert said.splitlines()[1].startswith("npu is not available: libascendcl.so not found")


def test_N1_a_named_library_that_is_no_file_or_no_library(in_python, tmp_path):
    assert "GENIE_ACL_LIBRARY names /nowhere/x.so, which is not a file" in in_python(
        TRY, GENIE_ACL_LIBRARY="/nowhere/x.so").stdout  # fmt: skip
    (tmp_path / "text.so").write_text("no library")
    said = in_python(TRY, GENIE_ACL_LIBRARY=str(tmp_path / "text.so")).stdout
    assert said.startswith("False 0") and str(tmp_path / "text.so") in said and "too short" in said


def test_N1_every_missing_function_is_named(in_python, tmp_path):
    path = without(tmp_path, "aclrtMalloc", "aclrtStreamWaitEvent", "aclrtStreamQuery")
    said = in_python(TRY, GENIE_ACL_LIBRARY=str(path)).stdout.splitlines()
    assert said[0] == (f"False 0 {path} is not a usable AscendCL library: it has no aclrtStreamWaitEvent, aclrtMalloc")
    assert said[1] == f"npu is not available: {said[0][8:]}"


def test_N1_optional_functions_may_be_missing(in_npu_process, tmp_path):
    said = in_npu_process(
        """
        from mindtorch import npu
        from mindtorch._ext import acl, blocks
        from device_memory import block_of, get
        print(*sorted(acl.missing()), sep=",") if npu.init() is None else 0
        print(npu.get_device_properties(1), acl.version())
        s, e, f = npu.Stream(1), npu.Event(enable_timing=True), npu.Event(enable_timing=True)
        with s:
            e.record()
            block = block_of(1, b"abc" * 1000)
            other = blocks.allocate(1, 3000)
            blocks.copy_within(other, 0, block, 0, 3000)
            blocks.fill(other, 0, 120, 2997)
            f.record()
        assert get(other) == b"x" * 2997 + b"abc"
        s.synchronize()
        assert any(s.query() for _ in range(1000))  # which records an event and waits a moment for it
        assert e.query() and e.elapsed_time(f) > 0
        try:
            blocks.allocate(0, 1 << 40)
        except RuntimeError as error:
            print(error)
        """,
        path=without(tmp_path, *OPTIONAL),
    ).splitlines()
    assert said[0] == ",".join(sorted(OPTIONAL))
    assert said[1] == (
        "DeviceProperties(name='Ascend NPU', total_memory=1073741824, cube_core_num=None, vector_core_num=None, "
        "L2_cache_size=None) None"
    )
    assert said[2].startswith("[aclrtMalloc] error 207018 (ACL_ERROR_RT_DEVICE_OOM): NPU out of memory. Tried to")


def test_N1_no_device_and_a_driver_error_are_told_apart(in_npu_process, tmp_path):
    no_driver_count = without(tmp_path, "drvGetDevNum")
    said = in_npu_process(TRY, devices=0, path=no_driver_count)
    assert "sees no device: [aclrtGetDeviceCount] error 207004 (ACL_ERROR_RT_NO_DEVICE): aclrtGetDevice" in said
    said = in_npu_process(
        """
        import acl_library, os, pathlib
        acl_library.Library(pathlib.Path(os.environ["GENIE_ACL_LIBRARY"])).fail("aclInit", 1, 507899)
        import mindtorch
        print(mindtorch.npu.why_unavailable())
        print(mindtorch.npu.why_unavailable())
        """,
        path=no_driver_count,
        GENIE_TEST_NPU_COUNT="0",
    )
    reason = "[aclInit] error 507899 (ACL_ERROR_RT_DRV_INTERNAL_ERROR): aclInit: injected fault 507899"
    assert said == f"{no_driver_count} sees no device: {reason}\nNone\n"


def test_N1_initialized_by_another_library_before(in_npu_process, acl_path):
    said = in_npu_process(
        """
        import ctypes, os
        theirs = ctypes.CDLL(os.environ["GENIE_ACL_LIBRARY"])
        assert theirs.aclInit(None) == 0
        from mindtorch._ext import pool
        from mindtorch import npu
        npu.init()
        npu.synchronize(1)
        pool.shutdown()
        left = ctypes.c_uint64(9)
        print(theirs.genie_test_leaks(None, 0), theirs.aclFinalizeReference(ctypes.byref(left)), left.value)
        """,
        GENIE_TEST_NPU_INIT="once",  # a repeated aclInit gives 100002, and is counted
    )
    assert said == "0 0 0\n", "it is theirs to end, and they are the last"


def test_N1_what_was_initialized_before_is_not_ended_where_nothing_is_counted(in_npu_process, tmp_path):
    said = in_npu_process(
        """
        import ctypes, os
        theirs = ctypes.CDLL(os.environ["GENIE_ACL_LIBRARY"])
        assert theirs.aclInit(None) == 0
        from mindtorch._ext import pool
        from mindtorch import npu
        npu.init()
        pool.shutdown()
        print(theirs.aclrtSetDevice(0), theirs.aclrtResetDevice(0), theirs.aclFinalize())
        """,
        path=without(tmp_path, "aclFinalizeReference"),
        GENIE_TEST_NPU_INIT="once",
    )
    assert said == "0 0 0\n"


def test_N5_a_library_of_operators_may_name_functions_that_are_not_there(in_npu_program, tmp_path):
    """They are needed for few operators, and come with parts of CANN that need not be installed."""
    library = acl_library.build_split(tmp_path)
    source = tmp_path / "absent.c"
    source.write_text("extern int absent_anywhere(void); int genie_uses_it(void) { return absent_anywhere(); }")
    for name in ("math", "nn"):
        extra = tmp_path / f"libopapi_{name}.so"
        inner = extra.rename(tmp_path / f"lib{name}_inner.so")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", extra, source, "-Wl,--no-as-needed", inner, "-Wl,-rpath,$ORIGIN"],
            check=True,
        )
    said = in_npu_program(
        """
        import torch, mindtorch
        from mindtorch._ext import acl
        print((torch.ones(2).npu() + 1).tolist(), mindtorch.stats()["npu_native"]["aten::add"])
        print(len(acl.operator_libraries()), acl.closed_operator_libraries())
        """,
        path=library,
    )
    assert said.splitlines() == ["[2.0, 2.0] 1", "2 ()"]


def test_N1_environment_is_left_alone(in_npu_process):
    said = in_npu_process(
        "import os; before = dict(os.environ)\nfrom mindtorch import npu; npu.init()\nprint(before == dict(os.environ))"
    )
    assert said == "True\n"


def test_N1_visible_devices_are_the_librarys_business(in_npu_process):
    # The driver counts what is there, the library what may be used: the library is asked.
    said = in_npu_process(
        "from mindtorch import npu\n"
        "print(npu.device_count(), npu.is_initialized(), npu.current_device())\n"
        "npu.set_device(2); print(npu.current_device())",
        devices=3, ASCEND_RT_VISIBLE_DEVICES="7,2,5", GENIE_TEST_NPU_COUNT="0",
    )  # fmt: skip
    assert said == "3 True 0\n2\n"  # positions in the list, whatever their order


def test_N1_errors_carry_function_code_name_and_the_librarys_text(npu, library):
    block = block_of(0, b"x" * 100)
    library.fail("aclrtSynchronizeStream", 1, 507899)
    with pytest.raises(NPUError) as caught:
        get(block)
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert (error.function, error.code) == ("aclrtSynchronizeStream", 507899)
    assert error.name == "ACL_ERROR_RT_DRV_INTERNAL_ERROR"
    assert error.detail == "aclrtSynchronizeStream: injected fault 507899"
    assert str(error) == f"[{error.function}] error 507899 ({error.name}): {error.detail}"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is NPUError and vars(copy) == vars(error) and str(copy) == str(error)
    assert get(block) == b"x" * 100
    assert acl.error_name(123) == "unknown error"


def test_N1_out_of_memory_is_what_programs_catch(npu):
    with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate") as caught:
        blocks.allocate(0, 1 << 45)
    assert isinstance(caught.value, NPUOutOfMemoryError) and len(caught.value.args) == 1
    assert type(pickle.loads(pickle.dumps(caught.value))) is NPUOutOfMemoryError


def test_N1_other_functions_by_name(npu):
    assert acl.symbol("aclnnAddGetWorkspaceSize") and acl.symbol("aclrtMalloc")
    assert acl.symbol("aclNoSuchFunction") == 0


def test_N1_one_library_for_a_process(npu):
    acl.load(acl.library_path())  # again: nothing happens
    with pytest.raises(RuntimeError, match=r"which is bound already, got /other\.so"):
        acl.load("/other.so")


def test_N7_a_test_library_is_known_as_one(npu):
    assert acl.is_test_library() and npu.is_test_library()
    assert npu.get_device_name() == "Ascend910B1-GenieTest" and acl.version() == "1.15.0"


def test_N1_a_call_that_blocks_lets_other_threads_run(npu, library):
    stream = npu.Stream(0)
    library.hold(stream.npu_stream)
    event = stream.record_event()
    waits = [stream.synchronize, event.synchronize, lambda: npu.synchronize(0)]
    threads = [threading.Thread(target=wait) for wait in waits]
    for thread in threads:
        thread.start()
    assert not event.query() and not stream.query()  # this thread goes on
    library.release()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert event.query() and stream.query()


STAND_IN = """
import types, torch
torch.npu = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 7, Stream="theirs")
"""


@pytest.mark.parametrize("works", [True, False])
def test_N6_torch_npu_that_works_is_left_the_field(acl_path, tmp_path, works):
    (tmp_path / "torch_npu.py").write_text(STAND_IN if works else "raise OSError('libhccl.so: no such file')")
    code = (
        "import sys; sys.argv = ['genie']\n"
        "import mindtorch; n = mindtorch.npu\n"
        "print(n.stands_aside(), n.device_count(), n.Stream, n.is_available())\n"
        "from mindtorch._ext import acl; print(acl.is_loaded())"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "GENIE_ACL_LIBRARY": str(acl_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    ours = "False 2 <class 'mindtorch._ext.streams.Stream'> True\nTrue\n"
    assert done.stdout == ("True 7 theirs True\nFalse\n" if works else ours)


def test_N7_pool_says_when_it_is_initialized(in_npu_process):
    said = in_npu_process(
        "from mindtorch import npu; a = npu.is_initialized(); n = npu.device_count(); b = npu.is_initialized()\n"
        "npu.init(); print(a, n, b, npu.is_initialized())", devices=5,
    )  # fmt: skip
    assert said == "False 5 False True\n"
    assert pool.in_bad_fork() is False


def test_N1_libraries_of_operators_are_looked_for_once_whoever_asks_first(in_npu_program, tmp_path):
    code = """
        import os, mindtorch
        from mindtorch._ext import acl
        print(acl.operator_libraries(), acl.closed_operator_libraries())
        mindtorch.npu.init()
        found = acl.operator_libraries()
        names = [os.path.basename(each) for each in found]
        print(names, acl.symbol("aclnnNoSuchOperation"), acl.operator_libraries() == found)
    """
    assert in_npu_program(code, path=acl_library.build_split(tmp_path)).splitlines() == [
        "() ()",
        "['libopapi_math.so', 'libopapi_nn.so'] 0 True",
    ]


#: First code, what their names begin with, the rest of the names in order; "-": a code without a name.
ERRORS = (
    (100000, "ACL_ERROR_", "INVALID_PARAM UNINITIALIZE REPEAT_INITIALIZE INVALID_FILE"),
    (107000, "ACL_ERROR_RT_",
     ("PARAM_INVALID INVALID_DEVICEID CONTEXT_NULL STREAM_CONTEXT MODEL_CONTEXT - EVENT_TIMESTAMP_INVALID "
     "EVENT_TIMESTAMP_REVERSAL ADDR_UNALIGNED")),
    (107016, "ACL_ERROR_RT_",
     "INVALID_MEMORY_TYPE INVALID_HANDLE INVALID_MALLOC_TYPE WAIT_TIMEOUT TASK_TIMEOUT"),
    (161001, "ACLNN_ERR_", "PARAM_NULLPTR PARAM_INVALID"),
    (200000, "ACL_ERROR_", "BAD_ALLOC API_NOT_SUPPORT INVALID_DEVICE"),
    (207000, "ACL_ERROR_RT_",
     ("FEATURE_NOT_SUPPORT MEMORY_ALLOCATION MEMORY_FREE AICORE_OVER_FLOW NO_DEVICE RESOURCE_ALLOC_FAIL "
     "NO_PERMISSION NO_EVENT_RESOURCE NO_STREAM_RESOURCE")),
    (207018, "ACL_ERROR_RT_", "DEVICE_OOM"),
    (361001, "ACLNN_ERR_", "RUNTIME_ERROR"),
    (500000, "ACL_ERROR_", "INTERNAL_ERROR FAILURE"),
    (507000, "ACL_ERROR_RT_", "INTERNAL_ERROR TS_ERROR"),
    (507010, "ACL_ERROR_RT_",
     ("LOST_HEARTBEAT MODEL_EXECUTE REPORT_TIMEOUT - AICORE_TIMEOUT AICORE_EXCEPTION AICORE_TRAP_EXCEPTION "
     "AICPU_TIMEOUT AICPU_EXCEPTION")),
    (507023, "ACL_ERROR_RT_", "MODEL_ABORT_NORMAL"),
    (507033, "ACL_ERROR_RT_",
     "DEV_SETUP_ERROR VECTOR_CORE_TIMEOUT VECTOR_CORE_EXCEPTION VECTOR_CORE_TRAP_EXCEPTION"),
    (507042, "ACL_ERROR_RT_",
     ("AICORE_TRAP_READ_OVERFLOW AICORE_TRAP_WRITE_OVERFLOW VECTOR_CORE_TRAP_READ_OVERFLOW "
     "VECTOR_CORE_TRAP_WRITE_OVERFLOW STREAM_SYNC_TIMEOUT EVENT_SYNC_TIMEOUT FFTS_PLUS_TIMEOUT")),
    (507053, "ACL_ERROR_RT_", "DEVICE_MEM_ERROR HBM_MULTI_BIT_ECC_ERROR - LINK_ERROR"),
    (507899, "ACL_ERROR_RT_", "DRV_INTERNAL_ERROR AICPU_INTERNAL_ERROR"),
    (561000, "ACLNN_ERR_", "INNER"),
    (561001, "ACLNN_ERR_INNER_", "INFERSHAPE_ERROR TILING_ERROR FIND_KERNEL_ERROR"),
    (561101, "ACLNN_ERR_INNER_",
     ("CREATE_EXECUTOR NOT_TRANS_EXECUTOR NULLPTR WRONG_ATTR_INFO_SIZE KEY_CONFLICT INVALID_IMPL_MODE "
     "OPP_PATH_NOT_FOUND LOAD_JSON_FAILED JSON_VALUE_NOT_FOUND JSON_FORMAT_INVALID JSON_DTYPE_INVALID "
     "OPP_KERNEL_PKG_NOT_FOUND OP_FILE_INVALID ATTR_NUM_OUT_OF_BOUND ATTR_LEN_NOT_ENOUGH "
     "INPUT_NUM_IN_JSON_TOO_LARGE INPUT_JSON_IS_NULL STATIC_WORKSPACE_INVALID STATIC_BLOCK_DIM_INVALID")),
)  # fmt: skip


def test_N2_error_codes_have_the_names_of_the_headers():
    expected = {
        first + k: begin + name
        for first, begin, names in ERRORS for k, name in enumerate(names.split()) if name != "-"
    }  # fmt: skip
    near = {code + k for code in expected for k in range(-2, 3)}
    assert {code: acl.error_name(code) for code in near} == {code: expected.get(code, "unknown error") for code in near}
