"""The functions of a HIVM module in text form, with how often each of their lines runs.

Two kinds of loop occur: ``scf.for`` and ``scf.while`` with braces (A2, A3), and blocks with a
branch back to an earlier one (A5). A loop whose trip count does not follow from constants counts
as running once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_CONSTANT = re.compile(
    r"(%[\w#]+) = (?:arith\.constant (-?\d+)|llvm\.mlir\.constant\((-?\d+)) : \w+"
)
_SAME_VALUE = re.compile(
    r"(%[\w#]+) = (?:builtin\.unrealized_conversion_cast|arith\.index_cast|arith\.ext\wi|"
    r"arith\.trunci|llvm\.[sz]ext|llvm\.trunc) (%[\w#]+) :"
)
_FOR = re.compile(r"scf\.for %[\w#]+ = (%[\w#]+) to (%[\w#]+) step (%[\w#]+)")
_BLOCK = re.compile(r"(\^bb\d+)(?:\((.*)\))?:")
_TARGET = re.compile(r"(\^bb\d+)(?:\(([^:)]*)[^)]*\))?")
_COMPARE = re.compile(r"= (?:arith\.cmpi slt,|llvm\.icmp \"slt\") (%[\w#]+), (%[\w#]+)")
_ADD = re.compile(r"(%[\w#]+) = (?:arith\.addi|llvm\.add) (%[\w#]+), (%[\w#]+)")


@dataclass
class Function:
    """One function with a body.

    Attributes:
        name: without the ``@``.
        header: its first line.
        lines: its body, one operation a line, stripped.
        runs: for each line, the product of the known trip counts around it.
        constants: integer constants by value name.
        loops: number of loops.
        loops_of_unknown_length: those among them whose trip count is not known.
    """

    name: str
    header: str
    lines: list[str]
    runs: list[int] = field(default_factory=list)
    constants: dict[str, int] = field(default_factory=dict)
    loops: int = 0
    loops_of_unknown_length: int = 0

    @property
    def is_vector_function(self) -> bool:
        """Whether it is one of A5's outlined vector functions."""
        return "hivm.vector_function" in self.header

    def _enclose(self, first: int, last: int, trips: int | None) -> None:
        self.loops += 1
        if trips is None:
            self.loops_of_unknown_length += 1
            return
        for i in range(first, last + 1):
            self.runs[i] *= trips


def functions(text: str) -> list[Function]:
    """Return the device functions of a module, in order."""
    found = []
    for header, lines in _bodies(text):
        if "hacc.host_func_type" in header:
            continue
        name = re.search(r"@([\w.$-]+)", header)
        assert name is not None  # _bodies yields func.func lines only
        function = Function(name[1], header, lines, [1] * len(lines))
        _read_constants(function)
        _weigh_structured(function)
        _weigh_blocks(function)
        found.append(function)
    return found


def _bodies(text: str) -> Iterator[tuple[str, list[str]]]:
    header, end = "", ""
    lines: list[str] = []
    for line in text.splitlines():
        if not header:
            if line.lstrip().startswith("func.func") and line.endswith("{"):
                header, lines = line, []
                end = line[: len(line) - len(line.lstrip())] + "}"
        elif line == end:
            yield header.strip(), lines
            header = ""
        else:
            lines.append(line.strip())


def _read_constants(function: Function) -> None:
    known = function.constants
    for line in function.lines:
        if constant := _CONSTANT.match(line):
            known[constant[1]] = int(constant[2] or constant[3])
        elif (same := _SAME_VALUE.match(line)) and same[2] in known:
            known[same[1]] = known[same[2]]


def _trips(start: int | None, stop: int | None, step: int | None) -> int | None:
    if start is None or stop is None or step is None or step <= 0:
        return None
    return max(0, -(-(stop - start) // step))


def _weigh_structured(function: Function) -> None:
    open_braces: list[tuple[int, bool, int | None]] = []
    for i, line in enumerate(function.lines):
        if line.startswith("}") and open_braces:
            first, is_loop, trips = open_braces.pop()
            if is_loop:
                function._enclose(first, i, trips)
        if line.endswith("{"):
            bounds = _FOR.search(line)
            is_loop = bounds is not None or "scf.while" in line or line.startswith("} do")
            known = [function.constants.get(name) for name in bounds.groups()] if bounds else []
            open_braces.append((i + 1, is_loop, _trips(*known) if known else None))


def _weigh_blocks(function: Function) -> None:
    starts: dict[str, tuple[int, list[str]]] = {}
    for i, line in enumerate(function.lines):
        if block := _BLOCK.match(line):
            names = [part.split(":")[0].strip() for part in (block[2] or "").split(",")]
            starts[block[1]] = (i, names)
    edges: dict[str, list[tuple[int, list[str]]]] = {}
    for i, line in enumerate(function.lines):
        if re.match(r"(?:cf|llvm)\.(?:br|cond_br)\b", line):
            for target, values in _TARGET.findall(line):
                passed = [value.strip() for value in values.split(",")]
                edges.setdefault(target, []).append((i, passed))
    for target, (start, names) in starts.items():
        back = [edge for edge in edges.get(target, []) if edge[0] > start]
        if back:
            entry = [edge for edge in edges[target] if edge[0] < start]
            trips = _block_trips(function, start, names, entry, back)
            function._enclose(start, max(i for i, _ in back), trips)


def _block_trips(
    function: Function,
    start: int,
    names: list[str],
    entry: list[tuple[int, list[str]]],
    back: list[tuple[int, list[str]]],
) -> int | None:
    """Trip count of the loop whose head block starts at line ``start`` with arguments ``names``."""
    known = function.constants
    head = function.lines[start + 1 :]
    for line in head:
        compare = _COMPARE.search(line)
        if compare and compare[1] in names:
            break
        if line.startswith("^bb"):
            return None
    else:
        return None
    index = names.index(compare[1])
    firsts = {known.get(values[index]) for _, values in entry if index < len(values)}
    steps = set()
    for i, values in back:
        for line in function.lines[start:i]:
            add = _ADD.match(line)
            if add and index < len(values) and add[1] == values[index]:
                steps.add(known.get(add[3] if add[2] == compare[1] else add[2]))
    if len(firsts) != 1 or len(steps) != 1:
        return None
    return _trips(firsts.pop(), known.get(compare[2]), steps.pop())
