"""Fenced memory and mutants: what the proofs rely on."""

from __future__ import annotations

import sys

import pytest
import torch
from ascend_ops_core.ops.norm import reference
from ascend_ops_core.testing.guards import Guarded, guarded
from ascend_ops_core.testing.mutants import mutated


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool], ids=str
)
def test_a_copy_has_values_shape_and_strides(dtype: torch.dtype) -> None:
    original = torch.arange(48).view(6, 8)[:, 1:6].to(dtype)
    strided = torch.empty_strided((6, 5), (8, 1), dtype=dtype).copy_(original)
    copy = Guarded(strided)
    assert torch.equal(copy.tensor, strided)
    assert copy.tensor.stride() == (8, 1)
    copy.tensor.fill_(0)
    copy.assert_fences()


@pytest.mark.parametrize("offset", [-1, 5, 8 * 5 + 5])
def test_a_write_outside_is_found(offset: int) -> None:
    copy = Guarded(torch.empty_strided((6, 5), (8, 1)).zero_())
    copy._buffer[copy.tensor.storage_offset() + offset] = 0
    with pytest.raises(AssertionError, match="out of bounds"):
        copy.assert_fences()


def test_a_read_outside_is_nan() -> None:
    copy = Guarded(torch.zeros(4))
    start = copy.tensor.storage_offset()
    assert copy._buffer[start - 1].isnan()
    assert copy._buffer[start + 4].isnan()


@pytest.mark.parametrize(
    ("dtype", "wider"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float64),
        (torch.int32, torch.int32),
    ],
    ids=str,
)
def test_one_fence_written_into_another_is_found(dtype: torch.dtype, wider: torch.dtype) -> None:
    source, target = Guarded(torch.ones(4, dtype=dtype)), Guarded(torch.ones(4, dtype=dtype))
    behind = source.tensor.storage_offset() + 4
    target._buffer[behind] = (source._buffer[behind].to(wider) * 1).to(dtype)
    source.assert_fences()
    with pytest.raises(AssertionError, match="out of bounds"):
        target.assert_fences()


def test_every_tensor_of_the_arguments_is_fenced() -> None:
    arguments = (torch.ones(2), [torch.zeros(0), torch.ones(1, 3)], None, 3)
    copies, guards = guarded(arguments)
    assert len(guards) == 3
    assert copies[2:] == (None, 3)
    assert torch.equal(copies[1][1], torch.ones(1, 3))


def test_a_mutant_differs_inside_its_block_only() -> None:
    name = reference.__name__
    with mutated(reference, "keepdim=True) + eps", "keepdim=True) + 1.0") as mutant:
        assert sys.modules[name] is mutant
        x = torch.randn(2, 8)
        assert not torch.equal(mutant.rms_norm(x, None, 0.0), reference.rms_norm(x, None, 0.0))
    assert sys.modules[name] is reference


def test_a_mutation_that_is_not_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"), mutated(reference, "no such text", ""):
        pass
