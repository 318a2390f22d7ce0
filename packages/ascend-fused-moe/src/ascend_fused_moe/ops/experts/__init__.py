"""The experts' feed-forward networks on routed tokens.

On an NPU torch_npu's grouped products compute them or, where those are refused (float32 on A5),
Triton's, both without a look at the ids on the host. Where neither takes them the definition runs
there: it reads how many tokens each expert has, so it waits for the device and cannot be part of a
captured graph.
"""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_fused_moe.ops.experts import reference

_cpu = CpuKernels("ascend_fused_moe.ops.experts.cpu")

__all__ = ["fused_experts"]


def fused_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    swiglu_limit: float | None = None,
    shared: tuple[torch.Tensor, torch.Tensor] | None = None,
    *,
    alpha: float = 1.0,
    bias: float = 0.0,
) -> torch.Tensor:
    """``sum_j weights[t, j] * w2[e] @ swiglu(w13[e] @ x[t])`` with ``e = ids[t, j]``.

    ``swiglu`` is ``gate * sigmoid(alpha * gate) * (up + bias)``.

    A shared expert, which every token visits with weight 1, may be added in the same pass.

    Args:
        x: ``[T, H]``; ``T`` may be 0.
        w13: ``[E, 2 * I, H]``, gate rows before up rows.
        w2: ``[E, H, I]``.
        weights: ``[T, k]`` float32.
        ids: ``[T, k]`` integer, each in ``[0, E)``; a token may name an expert more than once.
        swiglu_limit: see :func:`ascend_ops_core.ops.activation.silu_and_mul_with_clamp`.
        shared: ``[2 * S, H]`` and ``[H, S]`` of the shared expert, or None.
        alpha: factor in the sigmoid; 1.702 in gpt-oss's form, which MiniMax-M3 has on halves.
        bias: added to ``up``; 1 in the same form.

    Returns:
        ``[T, H]`` in ``x.dtype``, accumulated in float32.

    Raises:
        InvalidInputError: shapes that do not belong together, named with both sides; a negative
            limit; an id outside ``[0, E)`` (on a CPU, where looking costs nothing).
    """
    experts, two_i, hidden = w13.shape
    if w2.shape != (experts, hidden, two_i // 2) or two_i % 2 or x.shape[-1] != hidden:
        raise InvalidInputError(
            f"x {tuple(x.shape)}, w13 {tuple(w13.shape)}, w2 {tuple(w2.shape)}",
            "expected [T, H], [E, 2I, H] and [E, H, I]",
            "Check the layout of the stacked expert weights.",
        )
    if shared is not None and (
        shared[0].shape[0] % 2
        or shared[0].shape[1] != hidden
        or shared[1].shape != (hidden, shared[0].shape[0] // 2)
    ):
        raise InvalidInputError(
            f"shared expert {tuple(shared[0].shape)} and {tuple(shared[1].shape)}",
            f"expected [2S, H] and [H, S] with H={hidden}",
            "Check the layout of the shared expert's weights.",
        )
    if weights.shape != ids.shape or ids.shape[0] != x.shape[0]:
        raise InvalidInputError(
            f"weights {tuple(weights.shape)} and ids {tuple(ids.shape)}",
            f"both need [T, k] with T={x.shape[0]}",
            "Route exactly the tokens that are passed.",
        )
    if swiglu_limit is not None and swiglu_limit < 0:
        raise InvalidInputError(
            f"swiglu_limit={swiglu_limit}", "it must be positive", "Use 0 or null to switch it off."
        )
    if x.shape[0] == 0:
        return torch.empty_like(x)
    result: torch.Tensor = _FUSED_EXPERTS(
        x, w13, w2, weights, ids, swiglu_limit, *(shared or (None, None)), alpha, bias
    )
    return result


def _fused_experts_cpu(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    swiglu_limit: float | None,
    shared_w13: torch.Tensor | None,
    shared_w2: torch.Tensor | None,
    alpha: float,
    bias: float,
) -> torch.Tensor:
    kernels = _cpu.usable(x, w13, w2, weights, shared_w13, shared_w2)
    given = x, w13, w2, weights, ids, swiglu_limit, shared_w13, shared_w2, alpha, bias
    if kernels is not None and kernels.supports(x, w13, w2, shared_w13, shared_w2):
        out: torch.Tensor | None = kernels.fused_experts(*given)
        if out is not None:
            return out
    _check_ids(ids, w13.shape[0])
    return reference.fused_experts(*given)


def _check_ids(ids: torch.Tensor, experts: int) -> None:
    if not ids.numel():
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= experts:
        raise InvalidInputError(
            f"expert id {low if low < 0 else high}",
            f"there are {experts} experts",
            "Drop padding ids, and check the checkpoint's routing table.",
        )


_FUSED_EXPERTS = declare(
    __name__,
    "fused_experts(Tensor x, Tensor w13, Tensor w2, Tensor weights, Tensor ids,"
    " float? swiglu_limit, Tensor? shared_w13, Tensor? shared_w2, float alpha, float bias)"
    " -> Tensor",
    npu=("torch_npu", "triton", "torch"),
    fake=lambda x, *others: x.new_empty(x.shape),
    cpu=_fused_experts_cpu,
)
