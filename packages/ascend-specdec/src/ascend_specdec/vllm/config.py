"""What vLLM's speculative settings ask for that cannot be had, and what it does not read itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_ops_core.errors import InvalidInputError

from ascend_specdec.vllm.acceptance import floor_of, set_floor

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_QWEN3_DRAFTS = frozenset(
    {"DFlashDraftModel", "DFlash2DraftModel", "DFlash2Qwen3ForCausalLM", "Qwen3DSparkModel"}
)


def check_speculation(vllm_config: VllmConfig) -> None:
    """Refuse ways of verification that make other tokens than the model, and bad block drafts.

    Says, for a block draft, behind which layers the target's hidden states are taken, which vLLM's
    V1 runner reads from other keys than these drafts have. Also sets the share of right drafts
    below which this process warns.

    Raises:
        InvalidInputError: ``rejection_sample_method`` is ``synthetic``, the draft's config cannot
            be served, or a setting is wrong.
    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        return
    method = speculative.rejection_sample_method
    if method not in ("standard", "block"):
        raise InvalidInputError(
            f"rejection_sample_method={method!r}",
            "accepted tokens would not be those of the model",
            "Leave it out, or set it to 'standard' or 'block'.",
        )
    if speculative.method == "extract_hidden_states":
        _check_connector(vllm_config)
    set_floor(floor_of(vllm_config))
    draft = getattr(speculative, "draft_model_config", None)
    if draft is None or not _QWEN3_DRAFTS & set(draft.hf_config.architectures or []):
        return
    if speculative.method not in ("dflash", "dspark"):
        return
    from ascend_ops_core.vllm.block_drafts import read_target_layers

    from ascend_specdec.qwen3_blocks.config import BlockDraftSpec
    from ascend_specdec.qwen3_blocks.validation import check_pair

    spec = BlockDraftSpec.from_config(draft.hf_config)
    check_pair(spec, vllm_config)
    read_target_layers(spec, vllm_config)


def _check_connector(vllm_config: VllmConfig) -> None:
    """Refuse vLLM's example, whose streams and pinned memory are those of CUDA, or no folder.

    And prefixes beside recurrent states: vLLM 0.27.1 keeps hidden states in blocks of as many
    tokens as its page of a state holds, and its search for prefixes takes no such blocks.
    """
    from ascend_specdec.vllm.hidden_states import CONNECTOR, folder_of

    if vllm_config.model_config.is_hybrid and vllm_config.cache_config.enable_prefix_caching:
        raise InvalidInputError(
            "method='extract_hidden_states' with enable_prefix_caching=True",
            "beside recurrent states vLLM keeps hidden states in blocks that share no length with "
            "those by which it finds prefixes",
            "Set enable_prefix_caching=False (--no-enable-prefix-caching).",
        )
    transfer = vllm_config.kv_transfer_config
    connector = None if transfer is None else transfer.kv_connector
    if connector == CONNECTOR:
        folder_of(vllm_config)
    if connector == "ExampleHiddenStatesConnector":
        raise InvalidInputError(
            f"method='extract_hidden_states' with kv_connector={connector!r}",
            "it copies through pinned memory of CUDA, and would end the engine with the first "
            "request",
            f"Name {CONNECTOR}, which writes the same files.",
        )
