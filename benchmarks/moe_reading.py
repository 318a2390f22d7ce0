"""Reading the weights of some experts once, as fast as the threads can, and nothing else.

Beside the bandwidth of one large array it has what every call of the experts has as well: threads
that sleep and have to wake up, few bytes, and rows that lie apart.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from ascend_ops_core.cpu_tasks import no_task_taken, take_task
from numba import njit, prange

# Bytes that a thread takes at once; half and twice as much were not faster.
_PIECE = 1 << 17


def reader(w13: torch.Tensor, w2: torch.Tensor) -> Callable[..., None]:
    """A call ``(x, weights, ids)`` that reads what the experts ``ids`` have in both weights.

    Args:
        w13: ``[E, ...]``, contiguous.
        w2: ``[E, ...]``, contiguous.
    """
    arrays = [_words(weight) for weight in (w13, w2)]

    def read(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
        _read(*arrays, ids.numpy())

    return read


def _words(weight: torch.Tensor) -> np.ndarray:
    """``[E, words]`` int64."""
    array: np.ndarray = weight.detach().flatten(1).view(torch.int64).numpy()
    return array


@njit
def _pieces(first, second, ids):  # type: ignore[no-untyped-def]
    """Expert and first word of every piece, those of the second weight behind the first's."""
    hit = np.zeros(first.shape[0], dtype=np.bool_)
    for t in range(ids.shape[0]):
        for j in range(ids.shape[1]):
            hit[ids[t, j]] = True
    words = _PIECE // 8
    each = (first.shape[1] + words - 1) // words, (second.shape[1] + words - 1) // words
    found = np.empty((hit.sum() * (each[0] + each[1]), 2), dtype=np.int64)
    number = 0
    ends = np.zeros(2, dtype=np.int64)
    for weight in range(2):
        for expert in range(hit.shape[0]):
            if hit[expert]:
                for piece in range(each[weight]):
                    found[number] = expert, piece * words
                    number += 1
        ends[weight] = number
    return found, ends


@njit
def _sum(words, first):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for i in range(first, min(words.shape[0], first + _PIECE // 8)):
        total += words[i]
    return total


@njit(parallel=True)
def _read(first, second, ids):  # type: ignore[no-untyped-def]
    found, ends = _pieces(first, second, ids)
    taken = no_task_taken()
    total = np.int64(0)
    for _ in prange(128):
        task = take_task(taken)
        mine = np.int64(0)
        while task < ends[1]:
            weight = first if task < ends[0] else second
            mine += _sum(weight[found[task, 0]], found[task, 1])
            task = take_task(taken)
        total += mine
    return total
