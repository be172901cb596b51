"""What tests of the AscendCL test library share: its calls with errors as exceptions."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_void_p

import acl_library

H2H, H2D, D2H, D2D = range(4)


class Npu:
    """The few calls that the tests make all the time, with errors as exceptions."""

    def __init__(self, library: acl_library.Library) -> None:
        self.library = library

    def __call__(self, function: str, *arguments: object) -> None:
        code = getattr(self.library.c, function)(*arguments)
        assert code == 0, f"{function}: {code}: {self.library.c.aclGetRecentErrMsg()}"

    def code(self, function: str, *arguments: object) -> int:
        return getattr(self.library.c, function)(*arguments)

    def made(self, function: str, *arguments: object) -> c_void_p:
        handle = c_void_p()
        self(function, byref(handle), *arguments)
        return handle

    def malloc(self, size: int) -> c_void_p:
        return self.made("aclrtMalloc", c_size_t(size), 0)

    def put(self, pointer: c_void_p, data: bytes, stream: c_void_p | None = None) -> None:
        size = c_size_t(len(data))
        if stream is None:
            self("aclrtMemcpy", pointer, size, data, size, H2D)
        else:
            self("aclrtMemcpyAsync", pointer, size, data, size, H2D, stream)

    def get(self, pointer: c_void_p, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self("aclrtMemcpy", buffer, c_size_t(size), pointer, c_size_t(size), D2H)
        return buffer.raw

    def violated(self, words: str) -> None:
        """Exactly this was found, and is forgotten again."""
        found = self.library.violations()
        assert len(found) == 1 and words in found[0], found
        self.library.clear()
