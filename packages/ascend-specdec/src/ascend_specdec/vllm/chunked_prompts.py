"""Behind each chunk of a prompt a draft reads the prompt's next token.

Upstream symbol (0.27.1): ``SpecDecodeBaseProposer.prepare_next_token_ids_padded`` of
``vllm.v1.spec_decode.llm_base_proposer``. A draft reads, beside a token's hidden state, the token
behind it. Behind a chunk of a prompt that goes on, vLLM shows it the last token of the whole
prompt, so that the draft's caches hold a row that an unchunked prompt would not leave there, and
fewer drafts are right as long as that row is seen. Tokens are the target's all the same.

Block drafts read hidden states alone, heads of Medusa no caches, and other methods the text.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

__all__ = ["show_next_prompt_tokens"]


def show_next_prompt_tokens(runner: Any) -> None:
    """Mend the proposer of a V1 runner that has been made.

    Args:
        runner: of either device; one whose draft reads no tokens stays as it is.

    Raises:
        AttributeError: vLLM's proposer has no such method any more.
    """
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    drafter: Any = getattr(runner, "drafter", None)
    if not isinstance(drafter, SpecDecodeBaseProposer):
        return
    prepare = drafter.prepare_next_token_ids_padded

    def prepare_next_token_ids_padded(
        sampled_token_ids: torch.Tensor,
        requests: dict[str, Any],
        gpu_input_batch: Any,
        discard_request_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = gpu_input_batch.num_reqs
        # Tokens that are computed behind this step. vLLM reads the token in front of a request's
        # end, and heeds it where no token was sampled.
        behind = runner.optimistic_seq_lens_cpu[:count].numpy()
        within = runner.discard_request_mask.np[:count]
        batch = SimpleNamespace(
            num_reqs=count,
            req_ids=gpu_input_batch.req_ids,
            vocab_size=gpu_input_batch.vocab_size,
            num_tokens_no_spec=np.where(
                within, behind + 1, gpu_input_batch.num_tokens_no_spec[:count]
            ),
        )
        return prepare(sampled_token_ids, requests, batch, discard_request_mask)

    drafter.prepare_next_token_ids_padded = prepare_next_token_ids_padded
