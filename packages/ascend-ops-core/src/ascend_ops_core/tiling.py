"""Block sizes from the arithmetic of the unified buffer (UB).

What a kernel keeps in UB per element of its block is stated as two sums of bytes:

- ``streamed``: tiles that are loaded or stored inside the loop. The compiler keeps two of each
  (double buffering), so they count twice.
- ``local``: everything else that lives at the same time, such as float32 copies and
  intermediate results; each counts once.

For ``out = silu(gate) * up`` in bfloat16 that is ``streamed = 2 + 2 + 2`` and, with both operands
and one temporary in float32, ``local = 3 * 4``. The compile check measures what the compiler
really takes (``ascend-ops compile``).
"""

from __future__ import annotations

from ascend_ops_core.devices.facts import DeviceFacts
from ascend_ops_core.errors import InvalidInputError

SHARE = 0.75
"""Part of UB that block sizes aim at; the rest is for what the compiler adds by itself."""

_UNIT_BYTES = 32  # UB is handed out in units of 32 bytes
_LEAST_BLOCK = 256


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is at least ``value`` (1 for values below 1)."""
    return 1 << max(value - 1, 0).bit_length()


def tile_bytes(elements: int, *, streamed: int, local: int = 0, fixed: int = 0) -> int:
    """Return the bytes of UB that a block of ``elements`` elements takes.

    Args:
        elements: elements of the block.
        streamed: bytes per element of tiles loaded or stored in the loop, counted twice.
        local: bytes per element of the other live tiles.
        fixed: bytes that do not grow with the block, such as a row of weights.
    """
    return elements * (2 * streamed + local) + fixed


def block_of(
    facts: DeviceFacts,
    *,
    streamed: int,
    local: int = 0,
    fixed: int = 0,
    minimum: int = 32,
    maximum: int = 65536,
    share: float = SHARE,
) -> int:
    """Return the largest power-of-two block, in elements, whose tiles fit.

    Args:
        facts: the device family tiled for.
        streamed: bytes per element of tiles loaded or stored in the loop (counted twice).
        local: bytes per element of the other live tiles.
        fixed: bytes that do not grow with the block.
        minimum: smallest block worth running; a power of two.
        maximum: limit above, such as the padded width of the data. The block passes it only to
            reach ``minimum``.
        share: part of UB that may be filled, above 0 and at most 1.

    Raises:
        InvalidInputError: even ``minimum`` does not fit, or an argument makes no sense.
    """
    _check(streamed, local, fixed, minimum, share)
    budget = int(facts.ub_bytes * share)
    sizes = {"streamed": streamed, "local": local, "fixed": fixed}
    if tile_bytes(minimum, **sizes) > budget:
        raise InvalidInputError(
            f"block of {minimum} elements ({streamed} B streamed, {local} B local per element, "
            f"{fixed} B fixed)",
            f"needs {tile_bytes(minimum, **sizes)} B, and {share:.0%} of {facts.family}'s unified "
            f"buffer is {budget} B",
            "Split the width, or keep fewer tiles alive.",
        )
    block = minimum
    while 2 * block <= maximum and tile_bytes(2 * block, **sizes) <= budget:
        block *= 2
    return block


def even_block(width: int, block: int) -> int:
    """Return a power of two up to ``block`` in which a row can be taken without padding.

    Args:
        width: elements of a row.
        block: the largest block that fits, a power of two.

    Returns:
        The largest power of two up to ``block`` that divides ``width``; ``block`` itself if that
        is smaller than 256 elements, at which a transfer is mostly start-up.
    """
    even = min(width & -width, block)
    return even if even >= _LEAST_BLOCK else block


def tile_rows(
    facts: DeviceFacts,
    width: int,
    *,
    streamed: int,
    local: int = 0,
    fixed: int = 0,
    per_row: int = 0,
    minimum: int = 1,
    maximum: int = 1024,
    share: float = SHARE,
) -> int:
    """Return the largest power-of-two number of rows of ``width`` elements whose tiles fit.

    Args:
        facts: the device family tiled for.
        width: elements of a row as the kernel sees it (the padded width). A row takes whole
            units of 32 bytes, so a narrower one counts as 32 elements.
        streamed: bytes per element of tiles loaded or stored in the loop (counted twice).
        local: bytes per element of the other live tiles.
        fixed: bytes that do not grow with the rows, such as a weight row.
        per_row: bytes per row besides its elements, such as a float32 sum.
        minimum: smallest number of rows worth running; a power of two.
        maximum: limit above, such as the padded number of rows.
        share: part of UB that may be filled, above 0 and at most 1.

    Raises:
        InvalidInputError: even ``minimum`` rows do not fit, or an argument makes no sense.
    """
    if width < 1:
        raise InvalidInputError(f"width={width}", "a row has at least 1 element", "Check shapes.")
    padded = max(width, _UNIT_BYTES)
    return block_of(
        facts,
        streamed=streamed * padded,
        local=local * padded + per_row,
        fixed=fixed,
        minimum=minimum,
        maximum=maximum,
        share=share,
    )


def _check(streamed: int, local: int, fixed: int, minimum: int, share: float) -> None:
    if min(streamed, local, fixed) < 0 or streamed + local == 0:
        raise InvalidInputError(
            f"streamed={streamed}, local={local}, fixed={fixed}",
            "sizes are 0 or more bytes, and an element takes at least 1",
            "State what the kernel keeps per element.",
        )
    if minimum < 1 or minimum & (minimum - 1):
        raise InvalidInputError(
            f"minimum={minimum}", "a block is a power of two", "Use next_power_of_two()."
        )
    if not 0 < share <= 1:
        raise InvalidInputError(
            f"share={share}", "a share lies above 0 and at most at 1", "Leave it out for 0.75."
        )
