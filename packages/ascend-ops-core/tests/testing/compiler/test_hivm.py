"""Counts of HIVM modules, written by hand in the two forms that the compilers print."""

from __future__ import annotations

from ascend_ops_core.testing.compiler.hivm_counts import read_module
from ascend_ops_core.testing.compiler.hivm_module import functions

GM = "memref<?xf32, strided<[?], offset: ?>, #hivm.address_space<gm>>"
UB = "memref<?xf32, strided<[?], offset: ?>, #hivm.address_space<ub>>"

STRUCTURED = f"""\
module {{
  func.func @k_infer() -> i8 attributes {{hacc.host_func_type = #hacc.host_func_type<x>}} {{
    memref.store %0, %1[] : memref<i8>
    return %c : i8
  }}
  func.func private @load_gm_to_ubuf_1d_float({GM}, {UB}, i32) attributes {{x}}
  func.func @k(%arg0: memref<?xf32, #hivm.address_space<gm>>, %arg5: i32, %arg6: i32) {{
    %c0_i64 = arith.constant 0 : i64
    %c4096_i64 = arith.constant 4096 : i64
    %c0 = arith.constant 0 : index
    %c3 = arith.constant 3 : index
    %c1 = arith.constant 1 : index
    %0 = hivm.hir.pointer_cast(%c0_i64) : memref<1000xf32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c0_i64, %c4096_i64) : memref<1000xf32, #hivm.address_space<ub>>
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID1>]
    scf.for %arg9 = %16 to %arg5 step %arg6  : i32 {{
      scf.for %arg10 = %c0 to %c3 step %c1 {{
        %26 = arith.select %25, %1, %0 : memref<1000xf32, #hivm.address_space<ub>>
        %s = memref.subview %26[0] [%65] [1] : memref<1000xf32, #hivm.address_space<ub>> to {UB}
        func.call @load_gm_to_ubuf_1d_float(%g, %s, %c2) : ({GM}, {UB}, i32) -> ()
        scf.if %66 {{
          func.call @vexp_1d_float(%s, %s) : ({UB}, {UB}) -> ()
        }} {{hivm.unlikely_condition}}
        %v = memref.load %26[%arg10] : memref<1000xf32, #hivm.address_space<ub>>
      }}
      hivm.hir.pipe_barrier[<PIPE_ALL>]
      func.call @store_ubuf_to_gm_1d_float(%s, %g) : ({UB}, {GM}) -> ()
      func.call @store_ubuf_to_gm_1d_float(%p, %g) : ({UB}, {GM}) -> ()
      func.call @mma_tile_float(%a, %b) : (x) -> ()
      hivm.hir.sync_block_set[<CUBE>, <PIPE_FIX>, <PIPE_V>] flag = 1
    }}
    return
  }}
}}
"""

TILE = "memref<64xf32, #hivm.address_space<ub>>"

BLOCKS = f"""\
module {{
  func.func @k_vf_0(%arg0: {TILE}) attributes {{hivm.vector_function}} {{
    %0 = llvm.mlir.constant(0 : i32) : i32
    %1 = llvm.mlir.constant(10 : i32) : i32
    %2 = llvm.mlir.constant(4 : i32) : i32
    cf.br ^bb1(%0 : i32)
  ^bb1(%9: i32):  // 2 preds: ^bb0, ^bb2
    %10 = arith.cmpi slt, %9, %1 : i32
    cf.cond_br %10, ^bb2, ^bb3
  ^bb2:  // pred: ^bb1
    %11 = "hivm_regbaseintrins.intr.hivm.vexp.x"(%7, %8) : (x) -> vector<64xf32>
    %12 = arith.addi %9, %2 overflow<nsw> : i32
    cf.br ^bb1(%12 : i32)
  ^bb3:  // pred: ^bb1
    return
  }}
  func.func @k(%arg5: i32) {{
    %0 = llvm.mlir.constant(0 : i64) : i64
    %1 = llvm.mlir.constant(2 : i64) : i64
    %2 = llvm.mlir.constant(1 : i64) : i64
    cf.br ^bb1(%arg5, %0 : i32, i64)
  ^bb1(%3: i32, %4: i64):  // 2 preds: ^bb0, ^bb2
    %5 = llvm.icmp "slt" %4, %1 : i64
    cf.cond_br %5, ^bb2, ^bb3
  ^bb2:  // pred: ^bb1
    call @k_vf_0(%28) {{hivm.vector_function, no_inline}} : ({TILE}) -> ()
    memref.store %37, %alloca[] : memref<i32>
    %6 = llvm.add %4, %2 : i64
    cf.br ^bb1(%3, %6 : i32, i64)
  ^bb3:  // pred: ^bb1
    return
  }}
}}
"""


def test_structured_loops() -> None:
    module = read_module(STRUCTURED)
    counts = module.counts
    # 1000 floats are 125 units of 32 bytes, the last planned at byte 4096
    assert module.ub_bits == 4096 * 8 + 125 * 256
    assert (counts.loops, counts.loops_of_unknown_length) == (2, 1)
    assert (counts.vector, counts.weighted_vector, counts.cube) == (1, 3, 1)
    assert (counts.gm_load_bytes, counts.weighted_gm_load_bytes) == (4000, 3 * 4000)
    assert (counts.gm_store_bytes, counts.unsized_transfers) == (4000, 1)
    assert (counts.scalar, counts.weighted_scalar) == (1, 3)
    assert (counts.flags, counts.barriers, counts.block_syncs) == (1, 1, 1)


def test_loops_of_blocks() -> None:
    counts = read_module(BLOCKS).counts
    assert (counts.loops, counts.loops_of_unknown_length) == (2, 0)
    assert (counts.vector, counts.weighted_vector) == (1, 2)
    assert counts.vector_intrinsics == 2 * 3  # 0, 4, 8 in each of two calls
    assert counts.weighted_scalar == 2


def test_host_functions_do_not_count() -> None:
    assert [one.name for one in functions(STRUCTURED)] == ["k"]


def test_a_step_that_is_not_constant_leaves_the_length_open() -> None:
    counts = read_module(BLOCKS.replace("%6 = llvm.add %4, %2", "%6 = llvm.add %4, %arg5")).counts
    assert (counts.loops_of_unknown_length, counts.weighted_vector) == (1, 1)
