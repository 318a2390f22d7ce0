"""The rotary embedding by torch_npu, and the limits of every NPU implementation.

torch_npu's operators want ``cos`` and ``sin`` in the dtype of the heads. 16-bit heads with a
float32 table, which those would have to round, are rotated by the Triton kernels.
``npu_interleave_rope`` is not called at all: it leaves the channels de-interleaved.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_DOCUMENTED = ("A2", "A3")
_MAX_HEAD = 896
_MAX_HEADS = 1000
_MAX_TILE = 2048


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> torch.Tensor:
    """``npu_rotary_mul`` on the rotated channels; see :func:`ascend_ops_core.ops.rotary`."""
    rotary_dim = 2 * cos.shape[1]
    first = x.shape[2] - rotary_dim if at_end else 0
    rotated = x.narrow(2, first, rotary_dim).unsqueeze(0)
    mode = "interleave" if interleaved else "half"
    r1, r2 = (_wide(table, interleaved)[None, :, None] for table in (cos, sin))
    y: torch.Tensor = torch.ops.npu.npu_rotary_mul(rotated, r1, -r2 if inverse else r2, mode)[0]
    if rotary_dim == x.shape[2]:
        return y
    out = x.clone()
    out.narrow(2, first, rotary_dim).copy_(y)
    return out


def supports_apply_rotary(
    facts: DeviceFacts,
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> Support:
    """A2 and A3; one dtype; R below 896; fewer than 1000 heads (torch_npu's documentation)."""
    rotary_dim = 2 * cos.shape[1]
    return first_refusal(
        _family("npu_rotary_mul", facts),
        _alike("npu_rotary_mul", x, cos),
        (
            0 < rotary_dim < _MAX_HEAD,
            f"{rotary_dim} rotated channels, npu_rotary_mul takes 2 to {_MAX_HEAD - 2}",
        ),
        (
            x.shape[1] < _MAX_HEADS,
            f"{x.shape[1]} heads, npu_rotary_mul takes fewer than {_MAX_HEADS}",
        ),
        (x.numel() > 0, "x is empty"),
    )


def supports_apply_rotary_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> Support:
    """Any float dtype; heads that fit the unified buffer."""
    return first_refusal(_float(x), _fits(x))


def apply_rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_apply_rotary_pos_emb`` on copies, since it overwrites what it is given."""
    r1, r2 = (_wide(table, False)[:, None] for table in (cos, sin))
    turned: tuple[torch.Tensor, torch.Tensor] = torch.ops.npu.npu_apply_rotary_pos_emb(
        q.clone(), k.clone(), r1, -r2 if inverse else r2, layout="TND", rotary_mode="half"
    )
    return turned


def supports_apply_rotary_qk(
    facts: DeviceFacts,
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> Support:
    """A2 and A3; one dtype; whole heads of 64 or 128 channels by halves (its documentation).

    A5 has more modes, whose order of channels behind the table is not documented.
    """
    op = "npu_apply_rotary_pos_emb"
    width = q.shape[2]
    return first_refusal(
        _family(op, facts),
        _alike(op, q, cos),
        (not interleaved, f"interleaved pairs, {op} rotates halves"),
        (width in (64, 128), f"heads of {width} channels, {op} takes 64 or 128"),
        (
            2 * cos.shape[1] == width,
            f"{2 * cos.shape[1]} of {width} channels, {op} rotates whole heads",
        ),
        (q.numel() > 0 and k.numel() > 0, "q or k is empty"),
    )


def supports_apply_rotary_qk_triton(
    facts: DeviceFacts,
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> Support:
    """Any float dtype; heads that fit the unified buffer."""
    return first_refusal(_float(q), _fits(q))


def supports_rms_norm_rotary_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> Support:
    """Any float dtype; heads that fit the unified buffer."""
    return first_refusal(_float(x), _fits(x))


def _wide(table: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """One entry per channel from one per pair."""
    return table.repeat_interleave(2, 1) if interleaved else table.repeat(1, 2)


def _family(op: str, facts: DeviceFacts) -> tuple[bool, str]:
    return facts.family in _DOCUMENTED, f"{facts.family}, {op} is documented for A2, A3"


def _alike(op: str, x: torch.Tensor, cos: torch.Tensor) -> tuple[bool, str]:
    return (
        x.dtype == cos.dtype and x.dtype in FLOATS,
        f"heads of {x.dtype} with cos and sin of {cos.dtype}, {op} takes one float dtype",
    )


def _float(x: torch.Tensor) -> tuple[bool, str]:
    return x.dtype in FLOATS, f"heads of {x.dtype}, the kernel takes float"


def _fits(x: torch.Tensor) -> tuple[bool, str]:
    width = x.shape[2]
    return width <= _MAX_TILE, f"heads of {width} channels, the kernel takes at most {_MAX_TILE}"
