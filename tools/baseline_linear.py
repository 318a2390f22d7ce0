"""What stands beside vllm-ascend's kernels of linear attention for prompts."""

from __future__ import annotations

from tools.baseline_inputs import (
    ATTENTION,
    Passes,
    Work,
    case_inputs,
    channel_gates_inputs,
    chunk_inputs,
    l2_inputs,
    per_rows,
)

_CHANNELS = "1,024 channels"
_CHUNK = "chunk of a head"
_MERGED = (
    "a program of theirs has one system, one of ours those of several heads, whose products go "
    "from memory through the matrix unit to memory"
)
_INVERTED = (
    "theirs inverts blocks of 16 in the same kernel, row after row in a loop; ours in one of its "
    "own, for 32 heads at once, whose loops over rows, and over the 6 KiB of zeros beside the "
    "blocks of a chunk, count once as well"
)
_SCALAR_SUMS = "the scalar sums in their package kda are the same kernel"
_STATES = (
    "U is not made by ours, whose last kernel multiplies the inverse with values and takes from "
    "that, before rounding, what the state says; the chunk of a request, with its state read "
    "before and written behind it, on both sides"
)

LINEAR_ROWS: tuple[Work, ...] = (
    Work(
        "fla.l2norm.l2norm_fwd_kernel2_loop",
        "L2 norm of rows of 128",
        _CHANNELS,
        69 * 0.125,
        "l2_norm",
        l2_inputs,
        per_rows,
        package=ATTENTION,
    ),
    Work(
        "kda.l2norm.l2norm_fwd_persistent_kernel",
        "L2 norm of rows of 128",
        _CHANNELS,
        69 * 0.125,
        "l2_norm",
        l2_inputs,
        per_rows,
        package=ATTENTION,
    ),
    Work(
        "fla.cumsum.chunk_local_cumsum_scalar_kernel",
        "sums of decays of 32 heads",
        "chunk",
        2.0,
        "chunk_gated_delta_rule",
        chunk_inputs((16, 32), channels=False),
        lambda constants: float(constants["TAKEN"]),
        looped=False,
        kernel="_sums_kernel",
        remark="a pass has two chunks on their side; on ours four, if all are whole, and one that "
        f"is broken off; {_SCALAR_SUMS}",
        package=ATTENTION,
    ),
    Work(
        "fla.cumsum, fla.chunk_scaled_dot_kkt",
        "sums of decays, and products of keys weighted by them",
        _CHUNK,
        1.0,
        "chunk_gated_delta_rule",
        chunk_inputs((16, 32), channels=False),
        lambda constants: 1.0,
        passes=(Passes("_sums_kernel", 1 / 128), Passes("_system_kernel", 1 / 2)),
        remark="a pass of sums has two chunks of 32 heads on their side and four on ours; value "
        f"heads that share a key head share the product on ours; {_SCALAR_SUMS}",
        package=ATTENTION,
    ),
    Work(
        "fla.solve_tril.solve_tril_16x16_kernel",
        "inverses of blocks of 16 on the diagonal",
        "block",
        38.0,
        "chunk_gated_delta_rule",
        chunk_inputs((16, 32), channels=False),
        lambda constants: float(constants["TAKEN"] * constants["BLOCKS"]),
        held=lambda constants: float(constants["TAKEN"]),
        kernel="_blocks_kernel",
        remark="the same for chunks of 16, 32 and 64 tokens, but on A5 theirs crashes the compiler "
        "for two of the three; a program of theirs passes two tiles of 38 blocks, of which the "
        "figures are for one, its loops by their trip counts as ours; the zeros that ours stores "
        "beside a block are left off",
        package=ATTENTION,
        more=1024.0,
    ),
    Work(
        "fla.solve_tril.merge_16x16_to_64x64_inverse_kernel",
        "inverses of blocks of 16 on the diagonal made into one of 64",
        _CHUNK,
        1.0,
        "chunk_gated_delta_rule",
        chunk_inputs((16, 32), channels=False),
        lambda constants: 1.0,
        passes=(Passes("_merge_kernel", 1 / 2), Passes("_merge_kernel", 1 / 4)),
        remark=_MERGED,
        package=ATTENTION,
    ),
    Work(
        "fla.solve_tril.merge_16x16_to_32x32_inverse_kernel",
        "the same, into one of 32",
        "32 tokens of a head",
        1.0,
        "chunk_gated_delta_rule",
        chunk_inputs((16, 32), channels=False),
        lambda constants: 1.0,
        passes=(Passes("_merge_kernel", 1 / 4),),
        remark=_MERGED,
        package=ATTENTION,
    ),
    Work(
        "kda.kda.chunk_kda_scaled_dot_kkt_fwd",
        "products of keys and of queries decayed by channel, a head of 128",
        _CHUNK,
        1.0,
        "chunk_gated_delta_rule",
        chunk_inputs((32, 32), channels=True),
        lambda constants: 1.0,
        passes=(
            Passes("_near_kernel", 4 / 2),
            Passes("_far_kernel", 2.0),
            Passes("_far_kernel", 1.0),
        ),
        remark="theirs are `chunk_kda_scaled_dot_kkt_fwd_kernel_intra_sub_inter`, for 6 pairs of "
        "blocks of 16, whose loop over two halves of the channels counts once, and "
        "`..._intra_sub_intra`, for the 4 blocks on the diagonal, key after key in a loop; ours "
        "multiplies halves of 32 and of 64 tokens, and goes token after token through the blocks "
        "on the diagonal of two heads",
        package=ATTENTION,
    ),
    Work(
        "kda.solve_tril.merge_16x16_to_64x64_inverse_kernel_kda",
        "inverse of a triangular system of 64",
        _CHUNK,
        1.0,
        "chunk_gated_delta_rule",
        chunk_inputs((32, 32), channels=True),
        lambda constants: 1.0,
        passes=(
            Passes("_blocks_kernel", 4 / 32),
            Passes("_merge_kernel", 1 / 2),
            Passes("_merge_kernel", 1 / 4),
        ),
        remark=_INVERTED,
        package=ATTENTION,
    ),
    Work(
        "kda.solve_tril.merge_16x16_to_32x32_inverse_kernel_kda",
        "inverse of a triangular system of 32",
        "32 tokens of a head",
        1.0,
        "chunk_gated_delta_rule",
        chunk_inputs((32, 32), channels=True),
        lambda constants: 1.0,
        passes=(Passes("_blocks_kernel", 2 / 32), Passes("_merge_kernel", 1 / 4)),
        remark=_INVERTED,
        package=ATTENTION,
    ),
    Work(
        "kda.cumsum.chunk_local_cumsum_vector_kernel",
        "sums of decays of channels",
        "1,024 decays",
        2.0,
        "chunk_gated_delta_rule",
        chunk_inputs((32, 32), channels=True),
        lambda constants: float(constants["CHUNK"] * constants["BLOCK"] / 1024),
        looped=False,
        kernel="_sums_kernel",
        package=ATTENTION,
    ),
    Work(
        "kda.kda.kda_gate_fwd_kernel",
        "gates of channels",
        "1,024 gates",
        4.0,
        "kda_gates",
        channel_gates_inputs,
        per_rows,
        looped=False,
        kernel="_kda_kernel",
        package=ATTENTION,
    ),
    Work(
        "fla.wy_fast, fla.chunk_delta_h, fla.chunk_o",
        "W and U, states and outputs from the inverse on, a head of 128 by 128",
        _CHUNK,
        1.0,
        "chunk_gated_delta_rule",
        chunk_inputs((16, 32), channels=False),
        lambda constants: 1.0,
        passes=(
            Passes("_inner_kernel", 1 / 2),
            Passes("_operands_kernel", 1.0),
            Passes("_pass_kernel", 1.0),
        ),
        remark=f"{_STATES}; products of queries and keys are made in `fla.chunk_o` and in "
        "`_inner_kernel`, which has them for both value heads of a key head",
        package=ATTENTION,
    ),
    Work(
        "kda.kda.recompute_w_u_fwd_kernel, kda.chunk_delta_h, kda.kda.chunk_gla_fwd_kernel_o",
        "the same with decays of channels, products of queries and keys given",
        _CHUNK,
        1.0,
        "chunk_gated_delta_rule",
        chunk_inputs((32, 32), channels=True),
        lambda constants: 1.0,
        passes=(Passes("_operands_kernel", 1.0), Passes("_pass_kernel", 1.0)),
        remark=f"{_STATES}; a pass of theirs over states and one over outputs has half of the "
        "values, and their loops over halves of the keys count once",
        package=ATTENTION,
    ),
    Work(
        "mamba.lightning_attn",
        "lightning attention, a head of 128",
        "256 tokens of a head",
        1.0,
        "lightning_attention",
        case_inputs(ATTENTION, "lightning_attention", "lightning_attention", "ling_prefill"),
        lambda constants: 1.0,
        passes=(
            Passes("_added_kernel", 4.0),
            Passes("_states_kernel", 16.0, held=4.0, scalar=2.0),
            Passes("_output_kernel", 4.0),
        ),
        remark="256 tokens are a block of theirs, of which `_fwd_diag_kernel` and "
        "`_fwd_none_diag_kernel` pass 8 times, `_fwd_kv_parallel` and `_fwd_kv_reduce` twice, and "
        "4 chunks of ours, of whose state a program carries two quarters, one after the other; two "
        "small kernels list the chunks and the decays for all heads",
        package=ATTENTION,
    ),
)
