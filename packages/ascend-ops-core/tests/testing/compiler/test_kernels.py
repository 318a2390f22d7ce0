"""Sample kernels through the real compiler: figures that can be computed by hand, and failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ascend_ops_core.devices import COMPILED_FAMILIES
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.compiler import compile_kernel
from ascend_ops_core.tiling import tile_bytes

pytestmark = pytest.mark.compile

Kernel = Callable[[str], Any]
ADD = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "programs": "i32"}
MATMUL = {"a_ptr": "*bf16", "b_ptr": "*bf16", "out_ptr": "*fp32"}
GATHER = {"x_ptr": "*fp32", "index_ptr": "*i32", "out_ptr": "*fp32", "programs": "i32"}
ARGMAX = {"x_ptr": "*fp32", "out_ptr": "*i32"}


@pytest.mark.parametrize("family", COMPILED_FAMILIES)
def test_good_kernel_takes_the_buffer_that_arithmetic_says(kernel: Kernel, family: str) -> None:
    report = compile_kernel(kernel("add"), ADD, {"BLOCK": 2048}, family)
    assert report.ok, report.problem
    assert (report.stage, report.mix_mode) == ("hivm", "aiv")
    # three float32 tiles; A2 and A3 keep two of each, A5 one
    copies = 1 if family == "A5" else 2
    assert report.ub_bits == 2048 * 3 * 4 * 8 * copies
    assert report.ub_bits <= tile_bytes(2048, streamed=12) * 8
    assert report.counts is not None
    assert report.counts.gm_load_bytes == 2 * 2048 * 4
    assert report.counts.gm_store_bytes == 2048 * 4
    assert (report.counts.vector, report.counts.cube, report.counts.scalar) == (1, 0, 0)


@pytest.mark.parametrize("family", ["A2", "A5"])
def test_loops_of_known_length_weigh(kernel: Kernel, family: str) -> None:
    constants = {"WIDTH": 4096, "BLOCK": 1024}
    counts = compile_kernel(kernel("add_row_by_row"), ADD, constants, family).counts
    assert counts is not None
    assert (counts.vector, counts.weighted_vector) == (1, 4)
    assert counts.weighted_gm_load_bytes == 2 * 4096 * 4
    assert counts.weighted_gm_store_bytes == 4096 * 4
    assert counts.loops_of_unknown_length == 1  # over the programs
    if family == "A5":  # 64 float32 lanes; two loads, a mask, a sum, another mask, a store
        assert counts.vector_intrinsics == 4096 // 64 * 6


@pytest.mark.parametrize("family", ["A2", "A5"])
def test_gather_shows_as_scalar_accesses(kernel: Kernel, family: str) -> None:
    counts = compile_kernel(kernel("gather"), GATHER, {"BLOCK": 256}, family).counts
    assert counts is not None
    # per element: the index, the value, and the value's place in the tile
    assert (counts.scalar, counts.weighted_scalar) == (3, 3 * 256)


def test_matmul_runs_on_the_cube_cores(kernel: Kernel) -> None:
    constants = {"BLOCK": 64, "K": 512, "N": 64}
    report = compile_kernel(kernel("matmul"), MATMUL, constants, "A2")
    assert report.ok, report.problem
    counts = report.counts
    assert counts is not None
    assert counts.cube == 1
    assert counts.l0c_bits == 64 * 64 * 32
    assert counts.l1_bits == 2 * 2 * 64 * 64 * 16  # two operands, two buffers each
    assert counts.weighted_gm_load_bytes == 2 * 64 * 512 * 2


def test_a_kernel_that_fits_only_without_double_buffering_is_degraded(kernel: Kernel) -> None:
    report = compile_kernel(kernel("add"), ADD, {"BLOCK": 16384}, "A2")
    assert (report.stage, report.error_class, report.ok) == ("hivm", "", False)
    assert report.degraded == ("enable-code-motion", "enable-auto-multi-buffer")
    assert report.problem.startswith("degraded: the compiler retried without enable-code-motion")


def test_a_kernel_that_fills_the_buffer_has_nothing_to_spare(kernel: Kernel) -> None:
    report = compile_kernel(kernel("add"), ADD, {"BLOCK": 8192}, "A2")
    assert (report.ub_share, report.degraded) == (1.0, ())
    assert not report.ok


@pytest.mark.parametrize("family", ["A2", "A5"])
def test_buffer_overflow(kernel: Kernel, family: str) -> None:
    report = compile_kernel(kernel("add"), ADD, {"BLOCK": 65536}, family)
    assert (report.stage, report.error_class, report.ub_bits) == ("linalg", "ub_overflow", None)
    assert report.counts is None
    assert "ub overflow, requires" in report.problem


def test_unsupported_operation(kernel: Kernel) -> None:
    report = compile_kernel(kernel("argmax"), ARGMAX, {"BLOCK": 256}, "A5")
    assert (report.stage, report.error_class) == ("linalg", "unsupported_op")
    assert "linalg.reduce" in report.problem
    assert compile_kernel(kernel("argmax"), ARGMAX, {"BLOCK": 256}, "A2").ok


def test_error_of_the_front_end_gives_its_reason_first(kernel: Kernel) -> None:
    report = compile_kernel(kernel("misspelt"), ARGMAX, {"BLOCK": 256}, "A2")
    assert (report.stage, report.error_class) == ("none", "frontend")
    assert "has no attribute 'maximal'" in report.problem


def test_fp8_is_taken_on_a5_only(kernel: Kernel) -> None:
    signature = {**ADD, "out_ptr": "*fp8e4nv"}
    assert compile_kernel(kernel("add"), signature, {"BLOCK": 1024}, "A5").ok
    report = compile_kernel(kernel("add"), signature, {"BLOCK": 1024}, "A2")
    assert report.error_class == "unsupported_type", report.problem


def test_options_reach_the_compiler(kernel: Kernel) -> None:
    single = {"multibuffer": False}
    report = compile_kernel(kernel("add"), ADD, {"BLOCK": 2048}, "A2", options=single)
    assert report.ub_bits == 2048 * 2 * 4 * 8  # one of each, the sum in place of an operand
    with pytest.raises(InvalidInputError, match="option 'multi_buffer'"):
        compile_kernel(kernel("add"), ADD, {"BLOCK": 64}, "A2", options={"multi_buffer": True})


@pytest.mark.parametrize(
    ("signature", "constants", "message"),
    [
        ({"x_ptr": "*fp32"}, {"BLOCK": 64}, "add without y_ptr"),
        ({**ADD, "z_ptr": "*fp32"}, {"BLOCK": 64}, "add with z_ptr"),
        ({**ADD, "x_ptr": "*float"}, {"BLOCK": 64}, r"type x_ptr=\*float"),
    ],
)
def test_arguments_that_do_not_fit(
    kernel: Kernel, signature: dict[str, str], constants: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        compile_kernel(kernel("add"), signature, constants, "A2")


def test_family_without_triton(kernel: Kernel) -> None:
    with pytest.raises(InvalidInputError, match="'310P': it has no Triton"):
        compile_kernel(kernel("add"), ADD, {"BLOCK": 64}, "310P")


def test_result_is_taken_from_the_cache(
    kernel: Kernel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile_kernel(kernel("add"), ADD, {"BLOCK": 1024}, "A2")
    monkeypatch.setattr(
        "ascend_ops_core.testing.compiler.check.lower", lambda *_: pytest.fail("compiled again")
    )
    assert compile_kernel(kernel("add"), ADD, {"BLOCK": 1024}, "A2") == first
    assert len(list(cache.rglob("*.json"))) == 1
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        compile_kernel(kernel("add"), ADD, {"BLOCK": 1024}, "A2", cache=False)
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        compile_kernel(kernel("add"), ADD, {"BLOCK": 512}, "A2")


def test_modules_are_kept_where_asked(kernel: Kernel, tmp_path: Path) -> None:
    compile_kernel(kernel("add"), ADD, {"BLOCK": 64}, "A5", keep=tmp_path / "kept")
    names = {file.name for file in (tmp_path / "kept").iterdir()}
    assert {"kernel.ttir.mlir", "kernel.ttadapter.mlir", "module.hivm.opt.mlir"} <= names
