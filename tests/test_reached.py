"""What says which tests come to a line (tests/reached.py), and so which mutants they meet."""

from __future__ import annotations

from pathlib import Path

from .reached import places, probed

PROGRAM = """\
LEAST = 1
cdef class Table:
    cdef int most
    def find(self, key=2):
        if key == 3:
            return 4
        elif key > (5 +
                    6):
            for at in range(7):
                self.most = 8
            else:
                raise KeyError(9)
        @cached
        def inner(n=10):
            return n + 11
        return inner(12)
cdef int free(int n) except -1: return n - 13
"""


def test_a_probe_stands_before_the_statement_and_nowhere_outside_of_functions() -> None:
    found = {row: None if place is None else place.begins for row, place in places(PROGRAM).items()}
    assert found == {
        1: None, 2: None, 3: None, 4: None, 5: 5, 6: 6, 7: 5, 8: 5, 9: 9, 10: 10, 11: 9, 12: 12, 13: 13, 14: 13, 15: 15,
        16: 16, 17: None,
    }  # fmt: skip


def test_lines_of_one_statement_have_one_probe(tmp_path: Path) -> None:
    file = tmp_path / "table.pyx"
    file.write_text(PROGRAM)
    assert probed(file, {1, 5, 7, 10, 11}, 20, 100) == {1: -1, 5: 20, 7: 20, 10: 21, 11: 22}
    lines = file.read_text().splitlines()
    assert lines[4:6] == ["        mt_reached[20] = 1", "        if key == 3:"]
    assert lines[9:13] == [
        "            mt_reached[22] = 1",
        "            for at in range(7):",
        "                mt_reached[21] = 1",
        "                self.most = 8",
    ]
