"""ACLGraphWrapper: whole decode steps captured as graphs of the NPU, and what makes that safe.

vLLM's dispatcher chooses the padded batch; this wrapper captures the model once for each and
replays it afterwards. A replay uses the addresses of the capture, so before every one it is checked
that the inputs and all static buffers are where they were, that the batch fits, and that every
buffer was filled for this step (:mod:`ascend_ops_core.static_buffers`).

Not run on hardware: proved on the simulated NPU, which also refuses waits of the host inside a
captured region and finds tensors made there that outlive it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.static_buffers import Snapshot, StaticBuffers
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.compilation.monitor import validate_cudagraph_capturing_enabled
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import get_forward_context, is_forward_context_available

logger = logging.getLogger(__name__)

# Of CANN's errors 207005 and 207008, as users reported them (vllm-ascend issues 9564 and 9691).
_NO_STREAM_LEFT = ("tream resources are insufficient", "no stream resource", "New capture stream")

# A thread of gloo may still hold what a collective has summed.
_LET_GO_S = 1.0


class GraphInputError(RuntimeError):
    """A captured graph would read or leave behind something that the program does not mean."""


@dataclass(frozen=True)
class _Place:
    address: int
    shape: tuple[int, ...]


@dataclass
class _Captured:
    """A graph and what must be as it was when it was captured."""

    graph: Any
    output: Any
    inputs: dict[str, _Place]
    buffers: list[tuple[StaticBuffers, Snapshot]]


class ACLGraphWrapper(CUDAGraphWrapper):
    """Captures and replays ``runnable`` for batches that vLLM's dispatcher marks for graphs.

    Args:
        runnable: the model.
        vllm_config: the engine's config.
        runtime_mode: the mode in which this wrapper acts; in others it calls ``runnable``.
        buffers: the static buffers that the model uses.
    """

    def __init__(
        self,
        runnable: Callable[..., Any],
        vllm_config: VllmConfig,
        runtime_mode: CUDAGraphMode = CUDAGraphMode.FULL,
        buffers: Sequence[StaticBuffers] = (),
    ) -> None:
        super().__init__(runnable, vllm_config, runtime_mode)
        self._buffers = buffers
        self._captured: dict[Any, _Captured] = {}

    def clear_graphs(self) -> None:
        """Forget all graphs and give their memory back."""
        for captured in self._captured.values():
            captured.graph.reset()
        self._captured.clear()
        super().clear_graphs()

    @property
    def captured_sizes(self) -> list[int]:
        """Padded numbers of tokens for which there is a graph, ascending."""
        return sorted({descriptor.num_tokens for descriptor in self._captured})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not is_forward_context_available():
            return self.runnable(*args, **kwargs)
        context = get_forward_context()
        if context.cudagraph_runtime_mode != self.runtime_mode:
            return self.runnable(*args, **kwargs)
        descriptor = context.batch_descriptor
        captured = self._captured.get(descriptor)
        if captured is None:
            validate_cudagraph_capturing_enabled()
            return self._capture(descriptor, args, kwargs)
        self._check(descriptor, captured, args, kwargs)
        captured.graph.replay()
        return captured.output

    def _capture(self, descriptor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rows = descriptor.num_tokens
        inputs = {name: _place(tensor) for name, tensor in _named_tensors(args, kwargs)}
        buffers = [(one, one.snapshot(rows)) for one in self._buffers]
        npu: Any = torch.npu  # type: ignore[attr-defined]
        graph = npu.NPUGraph()
        for one in self._buffers:
            one.expect_fills()
        try:
            with npu.graph(graph, pool=self.graph_pool):
                output = self.runnable(*args, **kwargs)
        except RuntimeError as error:
            self._refuse_without_streams(error, rows)
            raise
        for one in self._buffers:
            one.check_fills(rows)
        _forget_derived(get_forward_context().attn_metadata)
        _refuse_leftovers(graph, output, rows)
        self._captured[descriptor] = _Captured(graph, output, inputs, buffers)
        logger.debug("captured a graph for %s", descriptor)
        # Nothing has run yet: the caller gets the values of this step like that of any other.
        graph.replay()
        return output

    def _refuse_without_streams(self, error: RuntimeError, rows: int) -> None:
        """Say what to change where the driver's error says that the device has no stream left."""
        if any(sign in str(error) for sign in _NO_STREAM_LEFT):
            raise InvalidInputError(
                f"a graph of {rows} tokens beside {len(self._captured)} others",
                "the device has no streams left to capture it with",
                "List fewer cudagraph_capture_sizes in --compilation-config, close other programs "
                "on the device, or start with --enforce-eager.",
            ) from error

    def _check(
        self,
        descriptor: Any,
        captured: _Captured,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        given = dict(_named_tensors(args, kwargs))
        if given.keys() != captured.inputs.keys():
            raise GraphInputError(
                f"inputs {', '.join(given)} for the graph of {descriptor.num_tokens} tokens, which "
                f"was captured with {', '.join(captured.inputs)}. Pass the same tensors always."
            )
        for name, tensor in given.items():
            expected = captured.inputs[name]
            if tuple(tensor.shape) != expected.shape:
                raise InvalidInputError(
                    f"{name} {tuple(tensor.shape)}",
                    f"the graph of {descriptor.num_tokens} tokens was captured with "
                    f"{expected.shape}",
                    "Pad the batch to a captured size, or run it without a graph.",
                )
            if tensor.data_ptr() != expected.address:
                raise GraphInputError(
                    f"{name} is at {tensor.data_ptr():#x}, but the graph of "
                    f"{descriptor.num_tokens} tokens reads {expected.address:#x}. Copy the step's "
                    "values into the tensor that was captured."
                )
        for buffers, snapshot in captured.buffers:
            buffers.check_replay(snapshot, descriptor.num_tokens)


def _named_tensors(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    positional = ((f"argument {index}", one) for index, one in enumerate(args))
    for name, value in (*positional, *kwargs.items()):
        if isinstance(value, torch.Tensor):
            yield name, value


def _place(tensor: torch.Tensor) -> _Place:
    return _Place(tensor.data_ptr(), tuple(tensor.shape))


def _forget_derived(attn_metadata: Any) -> None:
    """Let metadata drop what it computed inside the region, which belongs to the graph."""
    if isinstance(attn_metadata, Mapping):
        for one in attn_metadata.values():
            if hasattr(one, "forget"):
                one.forget()


def _refuse_leftovers(graph: Any, output: Any, rows: int) -> None:
    """Refuse tensors that the region made, other than its results, and that are still alive.

    They lie in the pool that all graphs share, so the next graph overwrites them. torch_npu cannot
    tell; the simulated device can.
    """
    made_inside = getattr(graph, "made_inside", None)
    if made_inside is None:
        return
    results = {one.untyped_storage().data_ptr() for one in _all_tensors(output)}
    end = time.monotonic() + _LET_GO_S
    while leftovers := [one for one in made_inside() if one.address not in results]:
        if time.monotonic() < end:
            time.sleep(_LET_GO_S / 100)
            continue
        graph.reset()
        named = "; ".join(f"{one.by} made {one.dtype} {list(one.shape)}" for one in leftovers)
        raise GraphInputError(
            f"the graph of {rows} tokens leaves tensors behind that other graphs overwrite: "
            f"{named}. Allocate them before the first capture, as static buffers."
        )


def _all_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _all_tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _all_tensors(one)
