"""What stands beside vllm-ascend's kernels of MiniMax-M3's attention; see baseline_work.py."""

from __future__ import annotations

from typing import Any

from ascend_ops_core.cases import Inputs

from tools.baseline_inputs import ATTENTION, BF16, Passes, Units, Work, case_inputs

_FOLDER = "models.minimax_m3.ops."
_SCORED = (
    "with a block that is seen whole, one at the end of the context, and the beginning of the "
    "query, on both sides; ours gives priorities and what is not seen their scores in the same "
    "pass, and multiplies nothing where a single query takes its latest block anyway"
)
_PREPARED = (
    "those two kernels of theirs for what is one of ours: scores, then priorities and what is not "
    "seen"
)
_SCORED_A5 = (
    "with two blocks of keys and the beginning of the query, on both sides; ours also fills the 32 "
    "scores of a row that are not seen, and gives priorities"
)
_PREPARED_A5 = (
    _PREPARED + "; the synchronisations of the second, which are not known, count as none"
)
_MERGED = "ours returns the logarithm, too, whose 4 bytes for a head are left off"
_BLOCKS = (
    "one of the selected blocks of 128 rows, for the 16 heads that share the selection, with the "
    "beginning and the end of the query, on both sides; kernels named a5 are those that they run "
    "on A5, compiled for A2 as well"
)


def _attended(theirs: str, what: str, case: str) -> Work:
    return Work(
        f"{_FOLDER}{theirs}",
        what,
        "block of a query",
        1.0,
        "block_sparse_attention",
        case_inputs(ATTENTION, "block_sparse_attention", "block_sparse_attention", case),
        lambda constants: 1.0,
        once=True,
        remark=_BLOCKS,
        package=ATTENTION,
    )


def _scored(
    theirs: str,
    what: str,
    unit: str,
    units: tuple[float, Units | None],
    case: str,
    remark: str,
    also: tuple[tuple[str, float], ...] = (),
    passes: tuple[Passes, ...] = (),
    family: str = "A2",
) -> Work:
    return Work(
        f"{_FOLDER}{theirs}",
        what,
        unit,
        units[0],
        "block_scores",
        case_inputs(ATTENTION, "block_selection", "block_scores", case),
        units[1],
        once=True,
        remark=remark,
        package=ATTENTION,
        also=tuple((f"{_FOLDER}{name}", count) for name, count in also),
        passes=passes,
        family=family,
    )


def _merged(theirs: str, parts: int) -> Work:
    def inputs(new: Inputs) -> tuple[Any, ...]:
        return new.randn(parts, 8, 64, 128, dtype=BF16), new.randn(parts, 8, 64)

    return Work(
        f"{_FOLDER}{theirs}",
        f"merge of {parts} parts of a head of 128",
        "head",
        1.0,
        "merge_attention_states",
        inputs,
        lambda constants: float(constants["TAKEN"]),
        looped=False,
        remark=_MERGED,
        more=4.0,
        package=ATTENTION,
    )


# Both loops of theirs are counted once, and so are both of ours.
_BLOCKS_OF_A_PASS = 2.0
_PREFILL = "msa_m3_triton._prefill_index_score_kernel"
_DECODE_A5 = "msa_m3_triton_a5._decode_qk_score_kernel"
_PREFILL_A5 = "msa_m3_triton_a5._index_block_score_kernel"

M3: tuple[Work, ...] = (
    _scored(
        _PREFILL,
        "scores of blocks for a prompt's queries",
        "score",
        (96 * _BLOCKS_OF_A_PASS, lambda constants: constants["STEP"] * _BLOCKS_OF_A_PASS),
        "m3_prefill",
        _SCORED,
    ),
    _scored(
        "msa_m3_triton._prepare_prefill_topk_scores_kernel",
        "the same with priorities",
        "row of scores",
        (8.0, lambda constants: float(constants["STEP"])),
        "m3_prefill",
        _PREPARED,
        also=((_PREFILL, 96.0),),
    ),
    _scored(
        "msa_m3_triton._decode_index_score_kernel",
        "scores of blocks for a decode step's query, 4 heads",
        "block",
        (_BLOCKS_OF_A_PASS, lambda constants: _BLOCKS_OF_A_PASS),
        "m3_decode",
        _SCORED,
    ),
    _scored(
        _DECODE_A5,
        "the same",
        "block",
        (_BLOCKS_OF_A_PASS, lambda constants: _BLOCKS_OF_A_PASS),
        "m3_decode",
        _SCORED,
    ),
    _scored(
        "msa_m3_triton_a5._decode_index_score_pad_tail_kernel",
        "the same with what is not seen",
        "query",
        (1.0, lambda constants: 1.0),
        "m3_decode",
        _PREPARED,
        also=((_DECODE_A5, 1.0),),
    ),
    _attended("msa_m3_triton._gqa_sparse_fwd_kernel", "attention to selected blocks", "m3_prefill"),
    _attended("msa_m3_triton._gqa_sparse_decode_kernel", "the same, of decode steps", "m3_decode"),
    _attended(
        "msa_m3_triton_a5._gqa_sparse_fwd_kernel", "attention to selected blocks", "m3_prefill"
    ),
    _attended(
        "msa_m3_triton_a5._gqa_sparse_decode_kernel", "the same, of decode steps", "m3_decode"
    ),
    _merged("msa_m3_triton._merge_topk_attn_out_kernel", 2),
    _merged("msa_m3_triton_a5._merge_topk_attn_out_kernel", 8),
)

# Theirs takes a tile of 128 queries of one head, for which the unified buffer of A2 is too small,
# and has a loop for blocks that are seen whole and one for the others. Ours has one loop, which
# counts twice, for tiles of 256 rows.
_ROWS_A5 = 256
# The queries, the last block that each sees, and 32 columns that none sees.
_BESIDE = _ROWS_A5 * (128 * 2 + 4 + 32 * 4)


def _passes_a5(rows: float) -> tuple[Passes, ...]:
    share = rows / _ROWS_A5
    return (
        Passes("_block_scores_kernel", _BLOCKS_OF_A_PASS * share, held=share, less=_BESIDE * share),
    )


M3_A5: tuple[Work, ...] = (
    _scored(
        _PREFILL_A5,
        "scores of blocks for a prompt's queries",
        "score",
        (128 * _BLOCKS_OF_A_PASS, None),
        "m3_prefill",
        _SCORED_A5,
        passes=_passes_a5(128),
        family="A5",
    ),
    _scored(
        "msa_m3_triton_a5._prefill_index_score_prepare_for_topk_kernel",
        "the same with priorities",
        "row of scores",
        (8.0, None),
        "m3_prefill",
        _PREPARED_A5,
        also=((_PREFILL_A5, 128.0),),
        passes=_passes_a5(8),
        family="A5",
    ),
)
