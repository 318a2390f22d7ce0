"""What stands beside each kernel of vllm-ascend: a call of ours for the same work, and its unit.

The channels, heads and tokens that a pass of theirs handles follow from the bytes that it moves and
from vllm-ascend's launch code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from ascend_ops_core.cases import Inputs

BF16 = torch.bfloat16

Arguments = Callable[[Inputs], tuple[Any, ...]]
Units = Callable[[dict[str, Any]], float]


@dataclass(frozen=True)
class Work:
    """One row.

    Attributes:
        theirs: name in ascend_baseline.json.
        what: the work.
        unit: what the figures are given for.
        their_units: units that one pass of theirs handles; None for KiB moved.
        operator: ours.
        package: that has it.
        arguments: what it is called with; its own tiling decides the rest.
        our_units: units that one pass of ours handles, from the constants of the launch; None for
            KiB moved.
        once: whether loops count once on our side too, since theirs has one of unknown length.
        held: units that our tile holds, where that is not the same.
        looped: whether the compiler can double-buffer theirs: it has a loop over its tiles, and its
            launch does not forbid it.
        single: constants of the largest tile of ours that fits without double buffering, where that
            is not the tile that is launched with it.
        remark: what the page has to say about it.
    """

    theirs: str
    what: str
    unit: str
    their_units: float | None
    operator: str
    arguments: Arguments
    our_units: Units | None
    once: bool = False
    held: Units | None = None
    looped: bool = True
    single: dict[str, int] = field(default_factory=dict)
    remark: str = ""
    package: str = "ascend_ops_core"


def _rows(constants: dict[str, Any]) -> float:
    return float(constants.get("ROWS", 1) * constants["WIDTH"] / 1024)


def _block(constants: dict[str, Any]) -> float:
    return float(constants["BLOCK"] / 1024)


def _tokens(constants: dict[str, Any]) -> float:
    return float(constants["TOKENS"])


def _gated(rows: int, width: int, activation: str) -> Arguments:
    return lambda new: (
        new.randn(rows, width, dtype=BF16),
        new.randn(rows, width, dtype=BF16),
        new.randn(width, dtype=BF16),
        None,
        1e-5,
        width,
        True,
        activation,
    )


def _rotary(tokens: int, heads: tuple[int, ...]) -> Arguments:
    return lambda new: (
        *(new.randn(tokens, count, 128, dtype=BF16) for count in heads),
        new.randn(tokens, 64, dtype=BF16),
        new.randn(tokens, 64, dtype=BF16),
        False,
        False,
        False,
    )


def _qkv(new: Inputs, tokens: int, heads: tuple[int, int]) -> torch.Tensor:
    return new.randn(tokens, (heads[0] + 2 * heads[1]) * 128, dtype=BF16)


def _split(new: Inputs) -> tuple[Any, ...]:
    norm = [new.randn(128, dtype=BF16) for _ in range(2)]
    table, positions = new.randn(4096, 128, dtype=BF16), new.randint(0, 4096, 4096)
    return _qkv(new, 4096, (32, 8)), table, positions, *norm, None, None, 32, 8, 128, 1e-6, False


def _split_mrope(new: Inputs) -> tuple[Any, ...]:
    norm = [new.randn(128, dtype=BF16) for _ in range(2)]
    table, positions = new.randn(4096, 128, dtype=BF16), new.randint(0, 4096, 3, 4096)
    leading = (_qkv(new, 4096, (32, 8)), table, positions, *norm, None, None)
    return *leading, [24, 20, 20], True, 32, 8, 128, 1e-6, False


def _split_apply(new: Inputs) -> tuple[Any, ...]:
    weights = new.randn(8 * 128, dtype=BF16), new.randn(2 * 128, dtype=BF16)
    table, positions = new.randn(4096, 64, dtype=BF16), new.randint(0, 4096, 4096)
    leading = (_qkv(new, 4096, (8, 2)), new.rand(2, 4096), table, positions, *weights)
    return *leading, 8, 2, 128, 64, 16, 1e-6


def _linear(bias: bool) -> Arguments:
    return lambda new: (
        new.randn(4096, 4096, dtype=BF16),
        new.randn(1536, 4096, dtype=BF16),
        new.randn(1536, dtype=BF16) if bias else None,
    )


def _products(constants: dict[str, Any]) -> float:
    return float(constants["BM"] * constants["BN"] * constants["BK"] / 2**20)


def _slots(new: Inputs) -> tuple[Any, ...]:
    # Eight ranks that share a context, which theirs is compiled for as well.
    slots, starts = new.randint(0, 1, 4096), new.tensor([0, 4096], torch.int32)
    positions, table = new.randint(0, 4096, 4096), new.randint(0, 9, 1, 9, dtype=torch.int32)
    return slots, starts, positions, table, 128, 8, 3, 1


def _gates(new: Inputs) -> tuple[Any, ...]:
    a, b = (new.randn(65536, 8, dtype=BF16) for _ in range(2))
    return a, b, new.rand(8), new.randn(8, dtype=BF16), BF16


def _conv(new: Inputs, drafts: int) -> tuple[Any, ...]:
    requests, channels, tokens = 64, 8192, 1 + drafts
    starts = new.tensor(range(0, (requests + 1) * tokens, tokens), torch.int32)
    slots = new.tensor(range(1, requests + 1), torch.int32)
    accepted = new.full(1, requests, dtype=torch.int32) if drafts else None
    return (
        new.randn(requests * tokens, channels, dtype=BF16),
        new.randn(4, channels, dtype=BF16),
        starts,
        None,
        new.randn(requests + 1, 3 + drafts, channels, dtype=BF16),
        slots,
        None,
        accepted,
        tokens,
        True,
    )


def _l2(new: Inputs) -> tuple[Any, ...]:
    return new.randn(131072, 128, dtype=BF16), 1e-6, 1.0, BF16


_ATTENTION, _SPECULATION = "ascend_attention", "ascend_specdec"


def _case(package: str, module: str, operator: str, name: str) -> Arguments:
    """A case that the package has for its operator."""

    def made(new: Inputs) -> tuple[Any, ...]:
        cases = importlib.import_module(f"{package}.ops.{module}.cases").CASES[operator]
        made: tuple[Any, ...] = next(one for one in cases if one.name == name).make(new)
        return made

    return made


def _recurrence(new: Inputs) -> tuple[Any, ...]:
    requests, heads = 64, 8
    query, key, value = (new.randn(requests, heads, 128, dtype=BF16) for _ in range(3))
    return (
        *(query, key, value, new.randn(requests, heads, 128), new.rand(requests, heads)),
        new.randn(requests + 1, heads, 128, 128),
        new.tensor(range(requests + 1), torch.int32),
        new.tensor(range(1, requests + 1), torch.int32).view(requests, 1),
        *(None, 128**-0.5, True),
    )


def _expanded(new: Inputs) -> tuple[Any, ...]:
    one = new.randint(0, 3, 1, dtype=torch.int32)
    return new.full(0, 5, dtype=torch.int32), one, new.tensor([5], torch.int32), 0.0, 1.0


def _vocabulary(constants: dict[str, Any]) -> float:
    tiles = -(-constants["VOCABULARY"] // constants["BLOCK"])
    return float(tiles * constants["BLOCK"] / 1024)


def _attended(theirs: str, what: str, case: str) -> Work:
    return Work(
        f"models.minimax_m3.ops.{theirs}",
        what,
        "block of a query",
        1.0,
        "block_sparse_attention",
        _case(_ATTENTION, "block_sparse_attention", "block_sparse_attention", case),
        lambda constants: 1.0,
        once=True,
        remark=_BLOCKS,
        package="ascend_attention",
    )


_BLOCKS = (
    "one of the selected blocks of 128 rows, for the 16 heads that share the selection, with the "
    "beginning and the end of the query, on both sides; kernels named a5 are those that they run "
    "on A5, compiled for A2 as well"
)
_CHANNELS = "1,024 channels"
_MOVED = "KiB moved"
_PRODUCTS = "2^20 multiplications"
_STEP = "one step along the summed axis and the end of a tile, on both sides"
_TABLES = (
    "cosines and sines in bfloat16 on both sides; from a float32 table, which our models and our "
    "layers of vLLM keep, 256 bytes more are read for a token"
)
_VALUES = (
    "their buffer is that of the values, of which a pass copies 42 tokens, or 21 with cosines and "
    "sines gathered before; their bytes are given for one"
)

ROWS: tuple[Work, ...] = (
    Work(
        "fla.layernorm_guard.layer_norm_fwd_kernel",
        "RMS norm of rows of 128, gated with silu",
        _CHANNELS,
        0.125,
        "rms_norm_gated",
        _gated(131072, 128, "silu"),
        _rows,
        looped=False,
    ),
    Work(
        "kda.kda.layer_norm_gated_fwd_kernel",
        "RMS norm of rows of 128, gated with sigmoid",
        _CHANNELS,
        4.0,
        "rms_norm_gated",
        _gated(131072, 128, "sigmoid"),
        _rows,
        looped=False,
    ),
    Work(
        "kda.kda.layer_norm_gated_fwd_kernel1",
        "RMS norm of rows of 1,024, gated with sigmoid",
        _CHANNELS,
        1.0,
        "rms_norm_gated",
        _gated(4096, 1024, "sigmoid"),
        _rows,
        looped=False,
    ),
    Work(
        "activation.swiglu_quant._swiglu_quant_kernel",
        "SwiGLU and int8 rows of 1,536, groups of 32 experts",
        _CHANNELS,
        1.5,
        "swiglu_quant",
        lambda new: (new.randn(8192, 3072, dtype=BF16), new.randint(0, 32, 32), False, None),
        _rows,
    ),
    Work(
        "activation.swiglustep._swiglustep_kernel",
        "clamped SwiGLU of rows of 1,280",
        _CHANNELS,
        1.25,
        "swiglustep_and_mul",
        lambda new: (new.randn(8192, 2560, dtype=BF16), 7.0),
        lambda constants: float(constants["ROWS"] * constants["BLOCK"] / 1024),
    ),
    Work(
        "rms_norm.triton_rms_kernel",
        "RMS norm of rows of 512 without weights",
        _CHANNELS,
        8.0,
        "rms_norm",
        lambda new: (new.randn(65536, 512, dtype=BF16), None, 1e-6),
        _rows,
    ),
    Work(
        "muls_add.muls_add_kernel",
        "x * scale + y, rows of 7,168",
        _CHANNELS,
        3.5,
        "muls_add",
        lambda new: (new.randn(4096, 7168, dtype=BF16), new.randn(4096, 7168, dtype=BF16), 2.5),
        _block,
    ),
    Work(
        "layernorm_gated._layer_norm_fwd_1pass_kernel_npu",
        "RMS norm of rows of 128, gated with silu",
        _CHANNELS,
        8.0,
        "rms_norm_gated",
        _gated(131072, 128, "silu"),
        _rows,
        looped=False,
        single={"ROWS": 128},
        remark="without double buffering ours fits tiles of 128 rows, where theirs takes 64; as it "
        "is launched, with double buffering, it takes 64 as well",
    ),
    Work(
        "rope._triton_rope",
        "rotation of 32 query and 8 key heads of 128",
        "token",
        1.0,
        "apply_rotary_qk",
        _rotary(4096, (32, 8)),
        _tokens,
        remark=_TABLES,
    ),
    Work(
        "rope._triton_rope_siso",
        "rotation of 32 heads of 128",
        "token",
        1.0,
        "apply_rotary",
        _rotary(4096, (32,)),
        _tokens,
        remark=_TABLES,
    ),
    Work(
        "batch_invariant.mean.mean_kernel",
        "mean of rows of 7,168",
        _CHANNELS,
        1.0,
        "mean_batch_invariant",
        lambda new: (new.randn(4096, 7168, dtype=BF16), -1, True),
        _rows,
        held=lambda constants: float(constants["ROWS"] * constants["BLOCK"] / 1024),
    ),
    Work(
        "batch_invariant.rmsnorm._rms_norm_kernel",
        "RMS norm of rows of 4,096",
        _CHANNELS,
        1.0,
        "rms_norm_batch_invariant",
        lambda new: (new.randn(4096, 4096, dtype=BF16), new.randn(4096, dtype=BF16), 1e-6),
        _rows,
    ),
    Work(
        "batch_invariant.matmul.matmul_bias_persistent_kernel",
        "matrix product",
        _PRODUCTS,
        1.0,
        "linear_batch_invariant",
        _linear(bias=False),
        _products,
        once=True,
        remark=_STEP,
    ),
    Work(
        "batch_invariant.matmul.matmul_bias_persistent_kernel",
        "matrix product with bias",
        _PRODUCTS,
        1.0,
        "linear_batch_invariant",
        _linear(bias=True),
        _products,
        once=True,
        remark=_STEP,
    ),
    Work(
        "batch_invariant.matmul.linear_persistent_kernel",
        "matrix product",
        _PRODUCTS,
        8.0,
        "linear_batch_invariant",
        _linear(bias=False),
        _products,
        once=True,
        remark=_STEP,
    ),
    Work(
        "linearnorm.split_qkv_rmsnorm_rope.split_qkv_rmsnorm_rope_kernel",
        "split of 32 + 8 + 8 heads of 128, norm, rotation",
        "token",
        1.0,
        "split_qkv_rmsnorm_rope",
        _split,
        _tokens,
        remark=_VALUES,
    ),
    Work(
        "linearnorm.split_qkv_rmsnorm_rope_simt.split_qkv_rmsnorm_rope_simt_kernel",
        "the same in the form with cosines and sines gathered before",
        "token",
        1.0,
        "split_qkv_rmsnorm_rope",
        _split,
        _tokens,
        remark=_VALUES,
    ),
    Work(
        "linearnorm.split_qkv_rmsnorm_mrope.split_qkv_rmsnorm_mrope_kernel",
        "the same with three positions a token",
        "token",
        1.0,
        "split_qkv_rmsnorm_mrope",
        _split_mrope,
        _tokens,
    ),
    Work(
        "linearnorm.split_qkv_tp_rmsnorm_rope._split_qkv_and_compute_local_qk_var_kernel",
        "squares of 8 query and 2 key heads of 128",
        "token",
        1.0,
        "split_qkv_tp_variance",
        lambda new: (_qkv(new, 4096, (8, 2)), 8, 2, 128, 1),
        lambda constants: float(constants["ROWS"]),
    ),
    Work(
        "linearnorm.split_qkv_tp_rmsnorm_rope._apply_global_rmsnorm_kernel",
        "norm by given squares and rotation of 8 + 2 heads of 128",
        "token",
        1.0,
        "split_qkv_tp_apply",
        _split_apply,
        _tokens,
    ),
    Work(
        "bincount.token_bin_counts_and_mask_kernel",
        "counts of tokens",
        "256 tokens",
        1.0,
        "token_bin_counts_and_mask",
        lambda new: (new.randint(0, 129280, 32, 4096), 129280),
        lambda constants: constants["TOKENS"] / 256,
        looped=False,
    ),
    Work(
        "penalty.apply_all_penalties_kernel",
        "penalties on float32 logits",
        "1,024 logits",
        2.0,
        "apply_penalties",
        lambda new: (
            new.randn(64, 129280),
            new.randint(0, 2, 64, 129280, dtype=torch.bool),
            new.randint(0, 2, 64, 129280, dtype=torch.int32),
            *(new.rand(64) for _ in range(3)),
        ),
        _block,
    ),
    Work(
        "v2.sample.apply_top_k_top_p_triton._topk_topp_kernel",
        "top-k and top-p of 64 rows",
        _MOVED,
        None,
        "top_k_top_p",
        lambda new: (new.randn(64, 129280), new.randint(1, 100, 64), new.rand(64)),
        None,
        once=True,
        remark="both go over a row as often as its logits ask for: compared is a pass",
    ),
    Work(
        "batch_memcpy.batch_memcpy_kernel",
        "copies of ranges of bytes",
        "KiB copied",
        8.0,
        "batch_memcpy",
        lambda new: (
            new.randint(0, 256, 1 << 20, dtype=torch.uint8),
            new.randint(0, 256, 1 << 20, dtype=torch.uint8),
            *(new.randint(0, 1000, 64) for _ in range(3)),
        ),
        _block,
    ),
    Work(
        "kda.l2norm.l2norm_fwd_tiled_kernel",
        "L2 norm of rows of 128",
        _CHANNELS,
        4.0,
        "l2_norm",
        _l2,
        _rows,
        looped=False,
        package=_ATTENTION,
    ),
    Work(
        "fla.fused_qkvzba_split_reshape.fused_qkvzba_split_reshape_cat_kernel",
        "split of Qwen3-Next's projections, 16 key and 32 value heads of 128",
        "token",
        2.0,
        "split_qkvz_ba",
        lambda new: (
            new.randn(4096, 12288, dtype=BF16),
            new.randn(4096, 64, dtype=BF16),
            *(16, 32, 128, 128),
        ),
        lambda constants: constants["ROWS"] / constants["HEADS"],
        package=_ATTENTION,
    ),
    Work(
        "fla.utils._clear_ssm_states_kernel",
        "float32 states cleared",
        "KiB cleared",
        16.0,
        "clear_states",
        lambda new: (new.randn(257, 32, 128, 128), new.randint(0, 9, 64, dtype=torch.int32), None),
        lambda constants: constants["BLOCK"] * 4 / 1024,
        package=_ATTENTION,
    ),
    Work(
        "fused_gdn_gating.fused_gdn_gating_kernel",
        "gates of 8 heads",
        "1,024 gates",
        0.5,
        "gdn_gates",
        _gates,
        lambda constants: constants["ROWS"] * constants["HEADS"] / 1024,
        package=_ATTENTION,
    ),
    Work(
        "mamba.causal_conv1d._causal_conv1d_update_kernel_npu_tiled",
        "convolution of 4 taps, a token of a request",
        _CHANNELS,
        0.5,
        "causal_conv1d",
        lambda new: _conv(new, 0),
        _block,
        once=True,
        looped=False,
        package=_ATTENTION,
    ),
    Work(
        "mamba.causal_conv1d._causal_conv1d_update_kernel_npu_tiled",
        "convolution of 4 taps, 4 tokens of a request, of which drafts may be rejected",
        _CHANNELS,
        0.5,
        "causal_conv1d",
        lambda new: _conv(new, 3),
        _block,
        once=True,
        looped=False,
        package=_ATTENTION,
    ),
    Work(
        "compute_slot_mapping._compute_slot_mapping_kernel",
        "slots of tokens in a paged cache",
        "1,024 tokens",
        1.0,
        "compute_slot_mapping",
        _slots,
        _block,
    ),
    _attended("msa_m3_triton._gqa_sparse_fwd_kernel", "attention to selected blocks", "m3_prefill"),
    _attended("msa_m3_triton._gqa_sparse_decode_kernel", "the same, of decode steps", "m3_decode"),
    _attended(
        "msa_m3_triton_a5._gqa_sparse_fwd_kernel", "attention to selected blocks", "m3_prefill"
    ),
    _attended(
        "msa_m3_triton_a5._gqa_sparse_decode_kernel", "the same, of decode steps", "m3_decode"
    ),
    Work(
        "kda.fused_recurrent_kda.fused_recurrent_gated_delta_rule_fwd_kernel",
        "a token of the delta rule with decays of channels, of a head of 128 by 128",
        "1,024 values of a state",
        1.0,
        "recurrent_gated_delta_rule",
        _recurrence,
        lambda constants: constants["TAKEN"] * constants["PADDED"] / 1024,
        looped=False,
        package=_ATTENTION,
    ),
    Work(
        "reject_sample.expand_kernel",
        "a value of a request written to its 5 drafts",
        "request",
        1.0,
        "expand_to_drafts",
        _expanded,
        lambda constants: 1.0,
        remark="a request alone; in a batch ours holds 128 drafts in a pass, of which it writes "
        "those that the request has",
        package=_SPECULATION,
    ),
    Work(
        "reject_sample.sample_recovered_tokens_kernel",
        "tokens in place of rejected drafts",
        "1,024 tokens of the vocabulary",
        4.0,
        "recovered_tokens",
        _case(_SPECULATION, "verification", "recovered_tokens", "served_blocks"),
        _vocabulary,
        held=_block,
        looped=False,
        single={"BLOCK": 4096},
        remark="of a vocabulary of 151,936; a row of which nothing is left is read again, which is "
        "counted as one tile; without double buffering ours fits tiles of 4,096 tokens, as theirs "
        "takes, and as it is launched 2,048",
        package=_SPECULATION,
    ),
    Work(
        "reject_sample.rejection_random_sample_kernel",
        "verification of a draft by chance",
        "request of a draft",
        1.0,
        "verify_random",
        _case(_SPECULATION, "verification", "verify_random", "served"),
        lambda constants: 1.0,
        package=_SPECULATION,
    ),
    Work(
        "spec_decode.utils.prepare_inputs_padded_kernel",
        "last tokens and rejected drafts of requests",
        "16 requests",
        1.0,
        "prepare_inputs_padded",
        _case(_SPECULATION, "draft_inputs", "prepare_inputs_padded", "served"),
        lambda constants: constants["BLOCK"] / 16,
        package=_SPECULATION,
    ),
    Work(
        "spec_decode.utils.copy_and_expand_dflash_and_dspark_inputs_kernel",
        "inputs of a block draft",
        "request",
        1.0,
        "expand_blocks",
        _case(_SPECULATION, "block_inputs", "expand_blocks", "served"),
        lambda constants: 1.0,
        remark="a request of a decode step, whose rows lie in one block of the cache and in one "
        "pass of either side, of 256 rows theirs and of 128 ours; theirs copies the positions of "
        "the context, too, which ours leaves where they are",
        package=_SPECULATION,
    ),
)
