"""What a Kimi-K3 DSpark draft's config.json says, checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from ascend_ops_core.checkpoint.config_reader import ConfigReader
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.block_drafts import BlockShape
from ascend_ops_core.ops.rotary import YarnScaling, yarn_mscale

from ascend_models_kimi.kimi_linear.config import KimiLinearSpec

FIX = "Take the draft's config.json from where the draft was trained."
_YARN = ("yarn", "deepseek_yarn")
_REFUSED = ("mla_use_nope", "mla_use_output_gate", "mla_use_qk_norm", "dspark_bonus_anchor")


@dataclass(frozen=True)
class K3DSparkSpec(BlockShape):
    """A draft of dense layers with rotated latent attention, which fills a block in one pass.

    Attributes:
        text: sizes of its layers, in the terms of the target's; no experts, no delta attention.
        causal: a block's query does not see those behind it.
        markov_rank: of the Markov head.
        theta: base of the rotation's frequencies.
        yarn: context extension, or None.
        softmax_scale: factor on dot products, YaRN's included.
    """

    text: KimiLinearSpec
    causal: bool
    markov_rank: int
    theta: float
    yarn: YarnScaling | None
    softmax_scale: float

    @classmethod
    def from_config(cls, config: Any, target: KimiLinearSpec) -> Self:
        """Read a config of transformers.

        Args:
            config: the draft's.
            target: what it drafts for.

        Raises:
            InvalidInputError: a field is missing, is not served, or does not belong to the target.
        """
        read = ConfigReader(config, "a Kimi-K3 DSpark draft")
        for name in _REFUSED:
            if read.get(name, False):
                raise InvalidInputError(
                    f"{name}=True", "Kimi-K3's DSpark drafts are served without it", FIX
                )
        activation = read.get("hidden_act", "silu")
        if activation != "silu":
            raise InvalidInputError(
                f"hidden_act={activation!r}", "the draft's network is gated by silu", FIX
            )
        layers = read.integer("num_hidden_layers", least=1)
        sizes: dict[str, Any] = {name: read.integer(name, least=1) for name in _SIZES}
        text = replace(
            target,
            **sizes,
            rms_norm_eps=float(read.get("rms_norm_eps", 1e-6)),
            num_hidden_layers=layers,
            num_mtp_layers=0,
            delta_layers=(False,) * layers,
            moe_layers=(False,) * layers,
            num_experts=0,
            n_shared_experts=0,
            attn_res_block_size=None,
            mla_output_gate=False,
            routed_hidden_size=None,
            latent_norm=False,
            situ_beta=None,
            situ_linear_beta=None,
            logit_scale=float(read.get("logit_scale", 1.0)),
        )
        taken = read.get("target_layer_ids", None)
        theta, yarn, scale = _rotation(read, text)
        inner = read.get("dflash_config", None) or {}
        mask = read.get("mask_token_id", None)
        spec = cls(
            hidden_size=text.hidden_size,
            vocab_size=text.vocab_size,
            draft_vocab_size=read.get("draft_vocab_size", None) or text.vocab_size,
            text=text,
            target_layers=tuple(taken or ()),
            target_hidden_size=read.integer("target_hidden_size", least=1),
            mask_token=read.get("dspark_noise_token_id", None) if mask is None else mask,
            from_anchor=bool(read.get("sample_from_anchor", True)),
            causal=bool(inner.get("causal", False)),
            markov_rank=read.integer("markov_rank", least=1),
            theta=theta,
            yarn=yarn,
            softmax_scale=scale,
        )
        _check(spec, read, target)
        return spec


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)


def _check(spec: K3DSparkSpec, read: ConfigReader, target: KimiLinearSpec) -> None:
    taken, text = spec.target_layers, spec.text
    count = read.get("num_target_layers", None)
    inside = all(isinstance(one, int) and 0 <= one < target.num_hidden_layers for one in taken)
    if not taken or count != len(taken) or not inside:
        raise InvalidInputError(
            f"target_layer_ids={list(taken)} with num_target_layers={count}",
            f"they name as many of the target's {target.num_hidden_layers} layers",
            FIX,
        )
    for name, given, wanted in (
        ("vocab_size", spec.vocab_size, target.vocab_size),
        ("draft_vocab_size", spec.draft_vocab_size, target.vocab_size),
        ("hidden_size", spec.hidden_size, target.hidden_size),
        ("target_hidden_size", spec.target_hidden_size, target.hidden_size),
    ):  # fmt: skip
        if given != wanted:
            raise InvalidInputError(
                f"a draft with {name}={given}",
                f"it shares embedding and head with a target that has {wanted}",
                "Take a draft of this target.",
            )
    row = text.kv_lora_rank + text.qk_rope_head_dim
    if row != target.kv_lora_rank + target.qk_rope_head_dim:
        raise InvalidInputError(
            f"a draft that caches {row} values of a token",
            f"the target caches {target.kv_lora_rank + target.qk_rope_head_dim}, and vLLM makes "
            "the pages of all caches beside recurrent states alike",
            "Take a draft of this target.",
        )
    if not isinstance(spec.mask_token, int) or not 0 <= spec.mask_token < text.vocab_size:
        raise InvalidInputError(
            f"mask_token_id={spec.mask_token}",
            f"the vocabulary has the ids 0 to {text.vocab_size - 1}",
            FIX,
        )


def _rotation(read: ConfigReader, text: KimiLinearSpec) -> tuple[float, YarnScaling | None, float]:
    """Base of the frequencies, context extension, and the factor on dot products."""
    given = dict(read.get("rope_parameters", None) or read.get("rope_scaling", None) or {})
    theta = float(given.get("rope_theta") or read.get("rope_theta", None) or 50000.0)
    kind = given.get("rope_type") or given.get("type") or "default"
    scale = text.softmax_scale
    if kind == "default":
        return theta, None, scale
    if kind not in _YARN:
        raise InvalidInputError(
            f"rope_type={kind!r}", f"known are default, {', '.join(_YARN)}", FIX
        )
    yarn = YarnScaling(
        float(given["factor"]),
        int(given["original_max_position_embeddings"]),
        float(given.get("beta_fast", 32.0)),
        float(given.get("beta_slow", 1.0)),
    )
    # The table's own factor and that on the scores; DeepSeek's configs make the former 1.
    every = float(given.get("mscale_all_dim") or 0.0)
    if float(given.get("mscale") or every) != every:
        raise InvalidInputError(
            f"mscale={given.get('mscale')} with mscale_all_dim={every}",
            "both are the same in configs with this rotation",
            FIX,
        )
    factor = yarn_mscale(yarn.factor, every) if every else 1.0
    return theta, yarn, scale * factor * factor
