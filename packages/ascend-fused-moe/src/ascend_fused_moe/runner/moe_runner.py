"""A layer of routed and shared experts over its ranks, from hidden states to hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from ascend_ops_core.checks import require_at_least
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.overlap import bind
from torch import nn

from ascend_fused_moe.communication.methods import MoECommMethod
from ascend_fused_moe.communication.prepare_finalize import tokens_of_parts
from ascend_fused_moe.experts_mlp import ExpertsMlp
from ascend_fused_moe.mlp.lora import MoELoRAContext
from ascend_fused_moe.pipeline import (
    FusedExpertsResult,
    MoEPrepareOutput,
    MoERouterInput,
    MoETokenDispatchInput,
)
from ascend_fused_moe.routers.base import AscendRouter
from ascend_fused_moe.runner.plans import AFTER_ONE_ANOTHER, ALONE, OVERLAPPED
from ascend_fused_moe.runner.shared_experts import AscendSharedExperts

__all__ = ["AscendMoERunner", "CommMethods"]

# Tasks of the plans, in the order in which a pass gives their work.
_ROUTED = ("prepare", "experts", "finalize")
_SHARED = ("shared input", "shared part 1", "shared part 2", "shared output")


class CommMethods(Protocol):
    """Where a runner gets its way of communication for a step."""

    def for_tokens(self, tokens: int) -> MoECommMethod:
        """The way for a step whose largest data-parallel part has ``tokens`` tokens.

        Every rank is asked the same and answers the same.
        """


class AscendMoERunner(nn.Module):
    """Prepare, route, dispatch, compute, combine, finalize, and sum each output once.

    An output is whole, or its parts lie on the ranks of ``tp``, as its way of communication or its
    shared experts leave it. What is in parts is summed by exactly one all-reduce: both outputs
    together where both are in parts, else each on its own.

    Args:
        router: chooses experts.
        mlp: this rank's routed experts.
        methods: the way of communication of every step, or what chooses one.
        shared_experts: added to the routed output, or None.
        gate: makes the router's logits of hidden states, where the layer has its own router.
        to_physical: physical ids of the logical ones that the router chooses, -1 of -1, such as
            :meth:`AscendRoutedExperts.to_physical`; None for those of the partition, without
            replicas.
        reduce_results: False leaves outputs that are in parts so; the model then calls
            :meth:`maybe_all_reduce_tensor_model_parallel`, once, behind whatever it adds to them.
        dp_chunk_tokens: most tokens of a data-parallel part in one pass, which bounds memory; None
            for all in one.
        overlap: run the shared experts on a stream of their own.
        observe: called with what the experts of each pass gave; nothing of a pass is kept here,
            since what outlives a captured step lies where other graphs write.

    Raises:
        InvalidInputError: chunks with sequence parallelism, whose shares of a chunk would lie on
            other ranks than the tokens; shared experts for another layout of tokens.
    """

    def __init__(
        self,
        router: AscendRouter,
        mlp: ExpertsMlp,
        methods: MoECommMethod | CommMethods,
        *,
        shared_experts: AscendSharedExperts | None = None,
        gate: Callable[[torch.Tensor], torch.Tensor] | None = None,
        to_physical: Callable[[torch.Tensor], torch.Tensor] | None = None,
        reduce_results: bool = True,
        dp_chunk_tokens: int | None = None,
        overlap: bool = False,
        observe: Callable[[FusedExpertsResult], None] | None = None,
    ) -> None:
        super().__init__()
        self.router = router
        self.mlp = mlp
        self.methods = methods
        self.shared_experts = shared_experts
        self.gate = gate
        self.reduce_results = reduce_results
        self.dp_chunk_tokens = dp_chunk_tokens
        method = self._method(0)
        self.groups = method.groups
        self.sequence_parallel = method.prepare_finalize.sequence_parallel
        self.to_physical = to_physical or method.partition.to_physical
        self.observe = observe
        self._lora: MoELoRAContext | None = None
        self._fused_output_is_reduced = method.output_is_reduced
        self._plan = bind(ALONE, *_ROUTED)
        if shared_experts is not None:
            plan = OVERLAPPED if overlap else AFTER_ONE_ANOTHER
            self._plan = bind(plan, *_ROUTED, *_SHARED)
        self._check()

    @property
    def is_internal_router(self) -> bool:
        """Whether the layer makes its own router logits."""
        return self.gate is not None

    @property
    def use_dp_chunking(self) -> bool:
        """Whether a step may take several passes."""
        return self.dp_chunk_tokens is not None

    @property
    def output_is_reduced(self) -> bool:
        """Whether what the last call returned is whole."""
        return self.reduce_results or not self._in_parts

    def forward(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor | None = None,
        *,
        token_ids: torch.Tensor | None = None,
        active: torch.Tensor | None = None,
        tokens: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """The layer's output for this rank's tokens; every rank calls it, also one without tokens.

        Args:
            hidden_states: ``[T, H]``; ``T`` may be 0.
            router_logits: ``[T, E]``; None where the layer has a gate.
            token_ids: ``[T]``, for a router with a table.
            active: ``[T]`` bool; see :class:`MoERouterInput`. The routed output of other rows is 0.
            tokens: tokens of each data-parallel part, padding included; None asks the ranks.

        Returns:
            ``[T, H]``; see :attr:`output_is_reduced`.

        Raises:
            InvalidInputError: neither logits nor a gate, or both; inputs that do not fit together.
        """
        if (router_logits is None) == (self.gate is None):
            raise InvalidInputError(
                "router_logits and gate" if self.gate else "no router_logits and no gate",
                "the experts are scored by exactly one of them",
                "Pass logits to a layer without a gate alone.",
            )
        logits = router_logits if self.gate is None else self.gate(hidden_states)
        assert logits is not None
        if active is not None and token_ids is not None:
            # Padding rows may name any token, and the table is read before they are dropped.
            token_ids = token_ids.masked_fill(~active, 0)
        adapters = None if self._lora is None else self._lora.token_lora_mapping
        given = MoERouterInput(hidden_states, logits, token_ids, active, adapters)
        if tokens is None:
            tokens = tokens_of_parts(
                given.tokens, self.groups, self.sequence_parallel, hidden_states.device
            )
        return self._in_chunks(given, tuple(tokens))

    def maybe_all_reduce_tensor_model_parallel(self, output: torch.Tensor) -> torch.Tensor:
        """Sum the parts of the last call's output over ``tp``; itself where it is whole."""
        return output if self.output_is_reduced else self.groups.tp.all_reduce(output)

    def set_lora_context(self, context: MoELoRAContext | None) -> None:
        """Take the adapters of the experts for the calls that follow, and each token's of them.

        Every rank is given a context, or none is; adapters are exchanged with the tokens.

        Args:
            context: of this rank's tokens and places; None for no adapters.
        """
        self._lora = context

    def _in_chunks(self, given: MoERouterInput, tokens: tuple[int, ...]) -> torch.Tensor:
        limit = self.dp_chunk_tokens
        if limit is None or max(tokens, default=0) <= limit:
            return self._one_pass(given, tokens)
        outputs = []
        for first in range(0, max(tokens), limit):
            here = slice(first, first + limit)
            part = MoERouterInput(
                *(None if one is None else one[here] for one in _tensors(given))  # type: ignore[arg-type]
            )
            outputs.append(
                self._one_pass(part, tuple(min(max(n - first, 0), limit) for n in tokens))
            )
        return torch.cat(outputs)

    def _one_pass(self, given: MoERouterInput, tokens: tuple[int, ...]) -> torch.Tensor:
        method = self._method(max(tokens, default=0))
        self._fused_output_is_reduced = method.output_is_reduced
        state: dict[str, Any] = {}

        def prepare() -> None:
            state["prepared"] = method.prepare(given, tokens)

        def experts() -> None:
            state["routed"] = self._routed(method, state["prepared"])

        def finalize() -> None:
            state["routed"] = method.finalize(state["routed"], state["prepared"])

        work: tuple[Callable[[], Any], ...] = prepare, experts, finalize
        shared = self.shared_experts
        if shared is not None:
            work += _shared_work(shared, given, tokens[self.groups.dp.rank_in_group], state)
        self._plan.run(given.hidden_states.device, *work)
        return self._maybe_reduce_final_output(self._sum(state["routed"], state.get("shared")))

    def _routed(self, method: MoECommMethod, prepared: MoEPrepareOutput) -> torch.Tensor:
        rows = prepared.rows
        weights, ids = self.router.select_experts(rows)
        if rows.active is not None:
            # Before replicas are chosen, since what is chosen there is counted as load.
            ids = ids.masked_fill(~rows.active.unsqueeze(1), -1)
        given = MoETokenDispatchInput(
            rows.hidden_states,
            weights,
            self.to_physical(ids),
            rows.active,
            rows.adapters,
            complete=rows.active is None,
        )
        if self._lora is not None and not method.carries_adapters:
            raise InvalidInputError(
                f"adapters of experts with communication {method.kind.value!r}",
                "its operators send rows without their adapters",
                "Use 'all_gather' or 'all_to_all'.",
            )
        result = method.fused_experts(given, self.mlp, self._lora)
        if self.observe is not None:
            self.observe(result)
        return result.routed_out

    def _sum(self, routed: torch.Tensor, shared: torch.Tensor | None) -> torch.Tensor:
        routed = self._maybe_reduce_routed_output(routed)
        return routed if shared is None else routed + self._maybe_reduce_shared_output(shared)

    @property
    def _shared_is_reduced(self) -> bool:
        shared = self.shared_experts
        return shared is not None and shared.output_is_reduced

    @property
    def _in_parts(self) -> bool:
        """Whether all that a pass added up was in parts, so that the sum still is."""
        return not self._fused_output_is_reduced and not self._shared_is_reduced

    def _maybe_reduce_shared_output(self, shared: torch.Tensor) -> torch.Tensor:
        if self._shared_is_reduced or not self._fused_output_is_reduced:
            return shared
        return self.groups.tp.all_reduce(shared)

    def _maybe_reduce_routed_output(self, routed: torch.Tensor) -> torch.Tensor:
        if self._fused_output_is_reduced or not self._shared_is_reduced:
            return routed
        return self.groups.tp.all_reduce(routed)

    def _maybe_reduce_final_output(self, output: torch.Tensor) -> torch.Tensor:
        if not self._in_parts or not self.reduce_results:
            return output
        return self.groups.tp.all_reduce(output)

    def _method(self, tokens: int) -> MoECommMethod:
        methods = self.methods
        return methods if isinstance(methods, MoECommMethod) else methods.for_tokens(tokens)

    def _check(self) -> None:
        if self.dp_chunk_tokens is not None:
            require_at_least("dp_chunk_tokens", self.dp_chunk_tokens, 1)
            if self.sequence_parallel:
                raise InvalidInputError(
                    f"dp_chunk_tokens={self.dp_chunk_tokens} with sequence parallelism",
                    "a chunk's shares would lie on other ranks than its tokens",
                    "Switch one of them off.",
                )
        shared = self.shared_experts
        if shared is not None and shared.sequence_parallel != self.sequence_parallel:
            raise InvalidInputError(
                f"shared experts with sequence_parallel={shared.sequence_parallel}",
                f"the routed ones have {self.sequence_parallel}",
                "Give both the same layout of tokens.",
            )


def _tensors(given: MoERouterInput) -> tuple[torch.Tensor | None, ...]:
    return (
        given.hidden_states,
        given.router_logits,
        given.token_ids,
        given.active,
        given.adapters,
    )


def _shared_work(
    shared: AscendSharedExperts, given: MoERouterInput, tokens: int, state: dict[str, Any]
) -> tuple[Callable[[], Any], ...]:
    """What is done for each name of ``_SHARED``."""

    def first() -> None:
        state["shared"] = shared.prepare_input_before_routed_experts(given.hidden_states, tokens)

    def part1() -> None:
        state["shared"] = shared.part1(state["shared"])

    def part2() -> None:
        state["shared"] = shared.part2(state["shared"])

    def last() -> None:
        state["shared"] = shared.finalize(state["shared"], given.tokens, tokens)

    return first, part1, part2, last
