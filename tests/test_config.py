"""L11: environment variables are read strictly."""

import pytest

import mindtorch


@pytest.mark.parametrize("name", [
    "AUTO_ENABLE", "LOG_INTERCEPTS", "ENABLE_ATEN_IMPL", "REGISTER_DEVICE", "MAX_PENDING_OPS", "MAX_PENDING_BYTES",
    "UNSUPPORTED", "EXECUTOR", "EXECUTOR_DEVICE", "ADDRESS", "NPU_NATIVE",
])  # fmt: skip
def test_L11_a_variable_with_no_meaning_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mindtorch.base import config

    config.check()
    monkeypatch.setenv(f"GENIE_{name}", "junk")
    with pytest.raises(mindtorch.UsageError, match=f"GENIE_{name}: expected .*, got 'junk'"):
        config.check()
