"""Static counts and planned memory of a HIVM module."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from ascend_ops_core.testing.compiler.hivm_module import Function, functions
from ascend_ops_core.testing.compiler.report import Counts

_BITS = {"index": 64, "bf16": 16, "f8E4M3FN": 8, "f8E5M2": 8}
_MEMREF = re.compile(r"memref<((?:[\d?]+x)*)([a-zA-Z]\w*)")
_SPACE = re.compile(r"address_space<(\w+)>")
_PLANNED = re.compile(r"(%[\w#]+) = hivm\.hir\.pointer_cast\(([^)]*)\).*?: (memref<.*)")
_VIEW = re.compile(
    r"(%[\w#]+)(?:[:,].*?)? = "
    r"(?:memref\.\w+|arith\.select|builtin\.unrealized_conversion_cast) (.*)"
)
_CALL = re.compile(r"(?:%[\w#:]+ = )?(?:func\.)?call @([\w.$-]+)\(([^)]*)\)(.*)")
_SCALAR = re.compile(r"(?:%[\w#:]+ = )?(?:memref|llvm|affine)\.(?:load|store)\b")
_INTRINSIC = '"hivm_regbaseintrins.intr.hivm.'
_UNIT_BITS = 256  # buffers are planned in units of 32 bytes


@dataclass
class Module:
    """What a module's text tells.

    Attributes:
        counts: the static counts.
        ub_bits: largest extent of the planned unified buffer, bits.
    """

    counts: Counts
    ub_bits: int


@dataclass
class _Tally:
    counts: Counter[str] = field(default_factory=Counter)
    extents: dict[str, int] = field(default_factory=dict)
    vector_functions: dict[str, int] = field(default_factory=dict)
    """Weighted intrinsics of each vector function."""


def read_module(text: str) -> Module:
    """Count the operations of a ``module.hivm.opt.mlir``."""
    tally = _Tally()
    found = functions(text)
    for function in sorted(found, key=lambda one: not one.is_vector_function):
        _count(function, tally)
    extents = tally.extents
    return Module(
        Counts(**tally.counts, l1_bits=extents.get("cbuf", 0), l0c_bits=extents.get("cc", 0)),
        extents.get("ub", 0),
    )


def _count(function: Function, tally: _Tally) -> None:
    counts = tally.counts
    counts["loops"] += function.loops
    counts["loops_of_unknown_length"] += function.loops_of_unknown_length
    sizes: dict[str, int] = {}
    intrinsics = 0
    for line, runs in zip(function.lines, function.runs, strict=True):
        if planned := _PLANNED.match(line):
            _plan(function, planned, sizes, tally)
        elif call := _CALL.match(line):
            _call(call, runs, sizes, tally)
        elif _SCALAR.match(line):
            counts["scalar"] += 1
            counts["weighted_scalar"] += runs
        elif "hivm.hir.set_flag" in line:
            counts["flags"] += 1
        elif "hivm.hir.pipe_barrier" in line:
            counts["barriers"] += 1
        elif "hivm.hir.sync_block" in line:
            counts["block_syncs"] += 1
        elif _INTRINSIC in line:
            intrinsics += runs
        elif view := _VIEW.match(line):
            _view(view, sizes)
    if function.is_vector_function:
        tally.vector_functions[function.name] = intrinsics


def _plan(function: Function, planned: re.Match[str], sizes: dict[str, int], tally: _Tally) -> None:
    bits = _static_bits(planned[3])
    space = _SPACE.search(planned[3])
    if bits is None or space is None:
        return
    sizes[planned[1]] = bits // 8
    units = -(-bits // _UNIT_BITS)
    for name in planned[2].split(","):
        offset = function.constants.get(name.strip())
        if offset is not None:
            end = offset * 8 + units * _UNIT_BITS
            tally.extents[space[1]] = max(tally.extents.get(space[1], 0), end)


def _view(view: re.Match[str], sizes: dict[str, int]) -> None:
    """Give a view the size of its own type, or of the buffer behind it where that is dynamic."""
    types = _MEMREF.findall(view[2])
    shaped = types and types[-1][0] and "?" not in types[-1][0]
    bits = _static_bits(view[2][view[2].rindex("memref<") :]) if shaped else None
    if bits is not None:
        sizes[view[1]] = bits // 8
        return
    for name in re.findall(r"%[\w#]+", view[2]):
        if name in sizes:
            sizes[view[1]] = sizes[name]
            return


def _call(call: re.Match[str], runs: int, sizes: dict[str, int], tally: _Tally) -> None:
    name, operands, rest = call[1], call[2], call[3]
    counts = tally.counts
    if name in tally.vector_functions:
        counts["vector"] += 1
        counts["weighted_vector"] += runs
        counts["vector_intrinsics"] += runs * tally.vector_functions[name]
        return
    spaces = _SPACE.findall(rest.split("->")[0])
    if "gm" in spaces:
        # The source comes first.
        way = "load" if spaces[0] == "gm" else "store"
        known = [sizes[one.strip()] for one in operands.split(",") if one.strip() in sizes]
        if not known:
            counts["unsized_transfers"] += 1
            return
        counts[f"gm_{way}_bytes"] += min(known)
        counts[f"weighted_gm_{way}_bytes"] += min(known) * runs
    elif "mma" in name:
        counts["cube"] += 1
    elif set(spaces) <= {"ub"}:
        counts["vector"] += 1
        counts["weighted_vector"] += runs


def _static_bits(memref: str) -> int | None:
    found = _MEMREF.match(memref)
    if found is None or "?" in found[1]:
        return None
    element = found[2]
    bits = _BITS.get(element) or int(re.sub(r"\D", "", element) or 0)
    if not bits:
        return None
    for size in found[1].split("x")[:-1]:
        bits *= int(size)
    return bits
