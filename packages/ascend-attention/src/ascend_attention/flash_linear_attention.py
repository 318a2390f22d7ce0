"""Four functions with the signatures of the public flash-linear-attention package.

``chunk_gated_delta_rule``, ``fused_recurrent_gated_delta_rule``, ``chunk_kda`` and
``fused_recurrent_kda`` take what ``fla.ops`` takes and return what it returns, on a CPU and on an
NPU, over :mod:`ascend_attention.ops.gated_delta_rule`. What differs:

- Only the forward pass exists; tensors that need a gradient are refused.
- Gates are given as logarithms of the decay and betas behind the sigmoid: ``use_gate_in_kernel``,
  ``use_beta_sigmoid_in_kernel`` and what belongs to them are not taken, nor are decays of values.
- States are computed in float32 and returned in float32, as there; on a CPU products of chunks are
  made in float32, where fla, like our kernels for NPUs, rounds operands to the queries' dtype.
- float32 queries are taken by the chunk forms, too.
"""

from __future__ import annotations

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_attention.ops import gated_delta_rule as ops

__all__ = [
    "chunk_gated_delta_rule",
    "chunk_kda",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
]

Result = tuple[torch.Tensor, torch.Tensor | None]


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_v_first: bool = False,
) -> Result:
    """Gated DeltaNet over chunks of 64 tokens, for prompts.

    Args:
        q: ``[B, T, G, K]`` queries, float32, bfloat16 or float16.
        k: ``[B, T, G, K]`` keys of the same dtype.
        v: ``[B, T, H, V]`` values of the same dtype; ``H`` is a multiple of ``G``.
        g: ``[B, T, H]`` natural logarithms of the decays, at most 0.
        beta: ``[B, T, H]``, from 0 to 1.
        scale: factor on the queries; None is ``K ** -0.5``.
        initial_state: ``[N, H, K, V]``, one for each sequence; None begins with zeros.
        output_final_state: whether to return the state behind the last token.
        use_qk_l2norm_in_kernel: divide queries and keys by ``sqrt(sum of squares + 1e-6)``.
        cu_seqlens: ``[N + 1]`` integers, where the sequences of a ragged batch begin and end; ``B``
            is 1 then. Without, ``N`` is ``B``.
        state_v_first: states are ``[N, H, V, K]``.

    Returns:
        ``[B, T, H, V]`` in the dtype of ``v``, and the final states in float32 or None.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.

    Source: the documented arguments of ``fla.ops.gated_delta_rule``.
    """
    return _run(
        True, q, k, v, g, beta, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, cu_seqlens, state_v_first,
    )  # fmt: skip


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_v_first: bool = False,
) -> Result:
    """Kimi Delta Attention over chunks of 64 tokens, for prompts.

    As :func:`chunk_gated_delta_rule`, with ``g`` of shape ``[B, T, H, K]``: every channel of a key
    decays by itself.

    Source: the documented arguments of ``fla.ops.kda``.
    """
    return _run(
        True, q, k, v, g, beta, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, cu_seqlens, state_v_first,
    )  # fmt: skip


def fused_recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_v_first: bool = False,
) -> Result:
    """Gated DeltaNet token by token, for decode.

    As :func:`chunk_gated_delta_rule`; decays are ``g [B, T, H]`` or ``gk [B, T, H, K]``, of which
    one may be given, and none means no decay. ``beta`` of None is 1.

    Raises:
        InvalidInputError: both decays, or shapes or dtypes that do not fit each other.

    Source: the documented arguments of ``fla.ops.gated_delta_rule``.
    """
    if g is not None and gk is not None:
        raise InvalidInputError(
            "g and gk", "one kind of decay is taken", "Add g to gk, channel by channel."
        )
    decay = gk if g is None else g
    if decay is None:
        decay = torch.zeros(v.shape[:3], device=v.device)
    beta = torch.ones(v.shape[:3], device=v.device) if beta is None else beta
    return _run(
        False, q, k, v, decay, beta, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, cu_seqlens, state_v_first,
    )  # fmt: skip


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_v_first: bool = False,
) -> Result:
    """Kimi Delta Attention token by token, for decode.

    As :func:`chunk_gated_delta_rule`, with ``g`` of shape ``[B, T, H, K]``.

    Source: the documented arguments of ``fla.ops.kda``.
    """
    return _run(
        False, q, k, v, g, beta, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, cu_seqlens, state_v_first,
    )  # fmt: skip


def _run(
    chunks: bool,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    initial_state: torch.Tensor | None,
    output_final_state: bool,
    normalize: bool,
    cu_seqlens: torch.Tensor | None,
    state_v_first: bool,
) -> Result:
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, g, beta)):
        raise InvalidInputError(
            "inputs that need a gradient",
            "only the forward pass exists",
            "Call it within torch.no_grad() or torch.inference_mode().",
        )
    batch, tokens, heads, height = v.shape
    width, device = k.shape[-1], v.device
    if cu_seqlens is not None and batch != 1:
        raise InvalidInputError(
            f"a batch of {batch} with cu_seqlens",
            "sequences of a ragged batch lie behind each other in a batch of 1",
            "Flatten the batch.",
        )
    if cu_seqlens is None:
        bounds = torch.arange(0, batch * tokens + 1, max(tokens, 1), device=device)
        bounds = bounds if tokens else bounds.new_zeros(batch + 1)
    else:
        bounds = cu_seqlens
    count = bounds.shape[0] - 1
    # Slot 0 is none, so states begin behind it.
    state = torch.zeros((count + 1, heads, height, width), device=device)
    if initial_state is not None:
        wanted = (count, heads, height, width) if state_v_first else (count, heads, width, height)
        if initial_state.shape != wanted:
            raise InvalidInputError(
                f"initial_state of shape {list(initial_state.shape)}",
                f"its shape is {list(wanted)}",
                "Pass one state for each sequence.",
            )
        state[1:] = initial_state if state_v_first else initial_state.mT
    query, key, value, decay, betas = (x.flatten(0, 1) for x in (q, k, v, g.float(), beta))
    bounds = bounds.int()
    slots = torch.arange(1, count + 1, dtype=torch.int32, device=device)
    factor = width**-0.5 if scale is None else scale
    if chunks:
        out = ops.chunk_gated_delta_rule(
            query, key, value, decay, betas, state, bounds, slots, slots > 0, factor, normalize
        )
    else:
        out = ops.recurrent_gated_delta_rule(
            query, key, value, decay, betas, state, bounds, slots[:, None], None, factor, normalize
        )
    final = state[1:] if state_v_first else state[1:].mT.contiguous()
    return out.unflatten(0, (batch, tokens)), final if output_final_state else None
