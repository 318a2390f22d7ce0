"""What stands beside vllm-ascend's kernels of speculation; see baseline_work.py."""

from __future__ import annotations

from tools.baseline_inputs import (
    SPECULATION,
    Work,
    case_inputs,
    even_inputs,
    expanded_inputs,
    ngram_inputs,
    per_block,
    per_vocabulary,
)

SPECULATED: tuple[Work, ...] = (
    Work(
        "reject_sample.expand_kernel",
        "a value of a request written to its 5 drafts",
        "request",
        1.0,
        "expand_to_drafts",
        expanded_inputs,
        lambda constants: 1.0,
        remark="a request alone; in a batch ours holds 128 drafts in a pass, of which it writes "
        "those that the request has",
        package=SPECULATION,
    ),
    Work(
        "reject_sample.rejection_greedy_sample_triton",
        "verification of a draft by the target's choice",
        "request of a draft",
        1.0,
        "verify_greedy",
        case_inputs(SPECULATION, "verification", "verify_greedy", "served_ragged"),
        lambda constants: 1.0,
        once=True,
        package=SPECULATION,
    ),
    Work(
        "reject_sample.rejection_greedy_sample_spec_len_1_triton",
        "the same where every request has one draft",
        "request",
        1.0,
        "verify_greedy",
        even_inputs,
        lambda constants: float(constants["TAKEN"]),
        looped=False,
        package=SPECULATION,
    ),
    Work(
        "reject_sample.sample_recovered_tokens_kernel",
        "tokens in place of rejected drafts",
        "1,024 tokens of the vocabulary",
        4.0,
        "recovered_tokens",
        case_inputs(SPECULATION, "verification", "recovered_tokens", "served_blocks"),
        per_vocabulary,
        held=per_block,
        looped=False,
        single={"BLOCK": 4096},
        remark="of a vocabulary of 151,936; a row of which nothing is left is read again, which is "
        "counted as one tile; without double buffering ours fits tiles of 4,096 tokens, as theirs "
        "takes, and as it is launched 2,048",
        package=SPECULATION,
    ),
    Work(
        "reject_sample.sample_recovered_tokens_kernel",
        "the same where drafts were certain",
        "1,024 tokens of the vocabulary",
        4.0,
        "recovered_tokens",
        case_inputs(SPECULATION, "verification", "recovered_tokens", "served_ngram"),
        per_vocabulary,
        held=per_block,
        looped=False,
        single={"BLOCK": 4096},
        remark="of a vocabulary of 151,936; a row of which nothing is left is read again, which is "
        "counted as one tile; without double buffering ours fits tiles of 4,096 tokens, as theirs "
        "takes, and as it is launched 2,048",
        package=SPECULATION,
    ),
    Work(
        "reject_sample.rejection_random_sample_kernel",
        "verification of a draft by chance",
        "request of a draft",
        1.0,
        "verify_random",
        case_inputs(SPECULATION, "verification", "verify_random", "served"),
        lambda constants: 1.0,
        package=SPECULATION,
    ),
    Work(
        "spec_decode.utils.prepare_inputs_padded_kernel",
        "last tokens and rejected drafts of requests",
        "16 requests",
        1.0,
        "prepare_inputs_padded",
        case_inputs(SPECULATION, "draft_inputs", "prepare_inputs_padded", "served"),
        lambda constants: constants["BLOCK"] / 16,
        package=SPECULATION,
    ),
    Work(
        "spec_decode.utils.copy_and_expand_dflash_and_dspark_inputs_kernel",
        "inputs of a block draft",
        "request",
        1.0,
        "expand_blocks",
        case_inputs(SPECULATION, "block_inputs", "expand_blocks", "served"),
        lambda constants: 1.0,
        remark="a request of a decode step, whose rows lie in one block of the cache and in one "
        "pass of either side, of 256 rows theirs and of 128 ours; theirs copies the positions of "
        "the context, too, which ours leaves where they are",
        package=SPECULATION,
    ),
    Work(
        "spec_decode.ngram.ngram_spec_decode_kernel",
        "drafts from what followed the last 1 to 4 tokens before",
        "1,024 tokens",
        1.0,
        "propose_ngrams",
        ngram_inputs,
        per_block,
        remark="with the beginning and the end of a request, on both sides; theirs appends the "
        "tokens that were sampled, too",
        package=SPECULATION,
    ),
)
