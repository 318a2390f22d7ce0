"""Linear attention."""

from __future__ import annotations

import torch

from ascend_ops_core.testing.npu_references.limits import (
    require,
    require_contiguous,
    require_dtype,
    require_filled,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

_BF16 = (torch.bfloat16,)
_WIDTH = 128
_MOST_HEADS = 64


@reference("npu_chunk_gated_delta_rule", documented=("A2", "A3"))
def npu_chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    scale: float | None = None,
    g: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For every token of a sequence ``S = S e^g; S += beta (v - S k) k^T; o = scale S q``.

    Limits: bfloat16, with float32 ``g`` and int32 lengths; all but ``g`` are required; at most 64
    heads of 128 channels, those of values a multiple of those of keys; not empty.

    Assumed: the documentation's limit of 8 tokens a sequence is that of the recurrent operator,
    since its own example has 100. A sequence without tokens keeps its state. Tokens behind the last
    sequence give zeros. The state in ``initial_state`` stays as it is, since the schema does not
    mark it as written, and sums are float32 until the state is returned.
    """
    op = "npu_chunk_gated_delta_rule"
    required = {
        "beta": beta,
        "initial_state": initial_state,
        "actual_seq_lengths": actual_seq_lengths,
        "scale": scale,
    }
    for name, given in required.items():
        require(given is not None, op, f"{name} of None", "it is required")
    assert beta is not None
    assert initial_state is not None
    assert actual_seq_lengths is not None
    assert scale is not None
    for name, tensor in (("query", query), ("key", key), ("value", value), ("beta", beta)):
        require_dtype(op, name, tensor, _BF16)
    require_dtype(op, "initial_state", initial_state, _BF16)
    require_dtype(op, "actual_seq_lengths", actual_seq_lengths, (torch.int32,))
    require_dtype(op, "g", g, (torch.float32,))
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        require_rank(op, name, tensor, 3, 3)
        require(tensor.shape[2] == _WIDTH, op, f"{name} of width {tensor.shape[2]}", "it is 128")
        require(
            tensor.shape[1] <= _MOST_HEADS, op, f"{tensor.shape[1]} heads of {name}", "at most 64"
        )
    require_filled(op, value=value, initial_state=initial_state)
    require_contiguous(
        op, query=query, key=key, value=value, beta=beta, initial_state=initial_state
    )
    heads = value.shape[1]
    require(heads % key.shape[1] == 0, op, f"{heads} value heads", f"a multiple of {key.shape[1]}")
    out = torch.zeros_like(value)
    final = initial_state.clone()
    shared = heads // key.shape[1]
    start = 0
    for number, length in enumerate(actual_seq_lengths.tolist()):
        state = initial_state[number].float()
        for t in range(start, start + length):
            q, k = (x[t].float().repeat_interleave(shared, dim=0) for x in (query, key))
            if g is not None:
                state = state * torch.exp(g[t])[:, None, None]
            error = value[t].float() - torch.einsum("hvk,hk->hv", state, k)
            state = state + torch.einsum("h,hv,hk->hvk", beta[t].float(), error, k)
            out[t] = torch.einsum("hvk,hk->hv", state, q) * scale
        final[number] = state
        start += length
    return out, final
