"""The routed experts of a layer on one rank, from empty weights to rebalanced ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from ascend_ops_core.devices import current_facts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.huge_pages import move_to_huge_pages
from torch import nn

from ascend_fused_moe.eplb.exchange import Exchange
from ascend_fused_moe.eplb.maps import EplbLayerMaps
from ascend_fused_moe.eplb.placement import EMPTY, ExpertPlacement, initial_placement
from ascend_fused_moe.eplb.transaction import EplbLayer, rebalance_layer
from ascend_fused_moe.eplb.weights import EplbExpertTensorList
from ascend_fused_moe.group_list import GroupList
from ascend_fused_moe.layers.experts_methods import ExpertSizes, method_of
from ascend_fused_moe.layers.experts_slices import ExpertSlice
from ascend_fused_moe.mlp import Activation, ActivationKind, RowsLoRA
from ascend_fused_moe.ops.grouped_mlp.formats import unpacked_fp4, unpacked_int4
from ascend_fused_moe.quant_params import MoEQuantParams, QuantMode, build_quant_params

__all__ = ["AscendRoutedExperts"]

_logger = logging.getLogger(__name__)


class AscendRoutedExperts(nn.Module):
    """Experts of one rank: weights, maps, and the networks on rows in the order of the experts.

    Weights are created empty, loaded expert by expert (:meth:`load_expert`), checked
    (:meth:`process_weights_after_loading`), used (:meth:`forward_impl`), and, with load balancing,
    moved between ranks (:meth:`rebalance`).

    Args:
        experts: logical experts of the layer.
        hidden_size: ``H``.
        intermediate_size: ``I`` of a whole expert.
        dtype: of the model.
        quant: how the weights are quantised; None for not.
        scale_dtype: of stored scales, see
            :class:`ascend_fused_moe.layers.experts_methods.AscendQuantizedFusedMoEMethod`.
        activation: between the products; None for SwiGLU without a limit.
        bias: both products have one.
        ep_rank: this rank of the expert-parallel group.
        ep_ranks: ranks of that group; they need not divide the experts.
        tp_rank: this rank of the tensor-parallel group within an expert.
        tp_ranks: ranks of that group.
        placement: where experts lie at the start; None for their order, without replicas.
        max_replicas: most replicas that an expert may ever have, see
            :class:`ascend_fused_moe.eplb.EplbLayerMaps`.

    Attributes:
        maps: where experts lie.
        method: what the weights are.
        w13: ``[places, 2 * I, H]``, or packed; see
            :class:`ascend_fused_moe.mlp.MoEWeights` for it and the others.

    Raises:
        InvalidInputError: a placement for other experts or ranks, or slices that cut a block.
    """

    def __init__(
        self,
        experts: int,
        hidden_size: int,
        intermediate_size: int,
        dtype: torch.dtype,
        *,
        quant: MoEQuantParams | None = None,
        scale_dtype: torch.dtype | None = None,
        activation: Activation | None = None,
        bias: bool = False,
        ep_rank: int = 0,
        ep_ranks: int = 1,
        tp_rank: int = 0,
        tp_ranks: int = 1,
        placement: ExpertPlacement | None = None,
        max_replicas: int | None = None,
    ) -> None:
        super().__init__()
        placement = placement or initial_placement(experts, ep_ranks)
        if (placement.experts, placement.ranks) != (experts, ep_ranks):
            raise InvalidInputError(
                f"a placement of {placement.experts} experts on {placement.ranks} ranks",
                f"the layer has {experts} on {ep_ranks}",
                "Pass the placement of this layer.",
            )
        self.method = method_of(quant, scale_dtype)
        self.activation = activation or Activation()
        self.dtype = dtype
        interleaved = self.activation.kind is ActivationKind.SWIGLU_OAI
        if interleaved and self.method.quant.weights == "fp8_block":
            raise InvalidInputError(
                f"mode {self.method.quant.mode.value!r} with the activation swiglu_oai",
                "its gate and up channels alternate, and would share the scales of blocks",
                "Quantise by rows, or to microscaled formats.",
            )
        self._slice = ExpertSlice(
            intermediate_size, tp_rank, tp_ranks, self.method.unit, interleaved
        )
        inter = self._slice.size
        sizes = ExpertSizes(placement.capacity, hidden_size, inter, dtype, bias)
        self.method.create_weights(self, sizes)
        self.maps = EplbLayerMaps(placement, ep_rank, max_replicas, self.w13.device)
        self._load: torch.Tensor | None = None
        self._unpadded: torch.Tensor | None = None
        self._missing = {
            (expert, part)
            for expert in placement.on_rank(ep_rank)
            if expert != EMPTY
            for part in self._parts()
        }

    @property
    def quant_type(self) -> QuantMode:
        """How the weights are quantised."""
        return self.method.quant.mode

    @property
    def swiglu_limit(self) -> float | None:
        """Bound of the gated activation, or None."""
        return self.activation.limit

    @property
    def ascend_expert_map(self) -> torch.Tensor:
        """``[experts]`` int32: the place on this rank of each logical expert, -1 for none."""
        return self.maps.expert_map

    def get_log2phy_map(self) -> torch.Tensor:
        """``[experts, max_replicas]`` int32: the places of each logical expert, -1 for none."""
        return self.maps.log2phy

    def holds(self, expert: int) -> bool:
        """Whether a place of this rank holds a logical expert."""
        return expert in self.maps.placement.on_rank(self.maps.rank)

    def load_expert(self, expert: int, part: str, value: torch.Tensor) -> bool:
        """Copy one tensor of a checkpoint into every place of this rank that holds its expert.

        Args:
            expert: the logical expert.
            part: ``w1`` (gate), ``w3`` (up), ``w13`` (both, as the activation has them) or ``w2``,
                each also with ``_scale`` or ``_bias``.
            value: of a whole expert, as the checkpoint has it; this rank's slice is cut here.
                float8_e8m0fnu is taken for uint8. With tensor parallelism ``w2_bias`` stays 0 but
                on the first rank, since results are summed.

        Returns:
            Whether a place of this rank holds the expert.

        Raises:
            InvalidInputError: no such expert or part, or a tensor of another shape or dtype;
                nothing was changed.
        """
        experts = self.maps.placement.experts
        if not 0 <= expert < experts:
            raise InvalidInputError(
                f"expert {expert}", f"the layer has {experts}", "Check the names of the tensors."
            )
        name, which = self._slice.parameter_of(part)
        parameters = dict(self.named_parameters(recurse=False))
        if name not in parameters:
            raise InvalidInputError(
                f"part {part!r} of expert {expert}",
                f"the layer has {', '.join(parameters)}",
                "Check the checkpoint's quantisation config.",
            )
        parameter = parameters[name]
        cut = self._slice.cut(part, value, parameter)
        held = [p for p, e in enumerate(self.maps.placement.on_rank(self.maps.rank)) if e == expert]
        for place in held:
            self._slice.target(parameter[place], which).copy_(cut)
        done = ("w1", "w3") if which == "both" else (which,)
        self._missing -= {(expert, self._part(name, one)) for one in done}
        return bool(held)

    def process_weights_after_loading(self) -> None:
        """Check that everything was loaded; call it once, before the first step.

        On a CPU the weights lie in huge pages afterwards, where the system gives them.

        Raises:
            InvalidInputError: a tensor of some expert was not loaded; all of them are named.
        """
        if self._missing:
            named = ", ".join(
                f"{part} of expert {expert}" for expert, part in sorted(self._missing)
            )
            raise InvalidInputError(
                f"{len(self._missing)} tensors of the routed experts",
                f"the checkpoint did not have {named}",
                "Check that it is complete, and the quantisation that was named.",
            )
        self.method.weights(self).sizes(self.method.quant)
        if self.w13.device.type == "npu":
            self._fit_to_npu()
        move_to_huge_pages(self.parameters())

    w13: nn.Parameter
    w2: nn.Parameter
    w2_scale: nn.Parameter

    def _fit_to_npu(self) -> None:
        facts = current_facts()
        self.method.quant.check_device(facts)
        if self.method.quant.use_w4a8_per_channel_gmm_swiglu:
            self._unpack(unpacked_int4, QuantMode.W8A8)
        elif self.quant_type is QuantMode.W4A8_MXFP:
            self._unpack(unpacked_fp4, QuantMode.MXFP8)
        # torch_npu's product of int8 gives bfloat16 with such scales alone, but for A5. Of the
        # first product exact sums are scaled, which keeps float32.
        if self.quant_type is QuantMode.W8A8 and (facts.family, self.dtype) in (
            ("A2", torch.bfloat16),
            ("A3", torch.bfloat16),
        ):
            self.w2_scale.data = self.w2_scale.data.to(torch.bfloat16)

    def _unpack(self, unpack: Callable[[torch.Tensor], torch.Tensor], mode: QuantMode) -> None:
        """Store the same values in bytes.

        torch_npu documents no product of values of 4 bits with rows of 8.
        """
        _logger.info(
            "Experts in %s are unpacked for %s, which takes twice the memory.",
            self.quant_type.value,
            mode.value,
        )
        for parameter in (self.w13, self.w2):
            parameter.data = unpack(parameter.data)
        self.method = method_of(build_quant_params(mode), self.w2_scale.dtype)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> AscendRoutedExperts:
        super()._apply(fn, recurse)
        self.maps.apply(fn)
        return self

    def forward_impl(
        self,
        rows: torch.Tensor,
        group_list: GroupList,
        rows_scale: torch.Tensor | None = None,
        lora: RowsLoRA | None = None,
    ) -> torch.Tensor:
        """Run each row through its expert; with tensor parallelism the results are to be summed.

        Args:
            rows: ``[R, H]`` in the order of this rank's places, in the model's dtype, or quantised.
            group_list: rows of each place.
            rows_scale: of quantised rows.
            lora: adapters of the rows, for this rank's places; None for none.

        Returns:
            ``[R, H]`` in the model's dtype; see :func:`ascend_fused_moe.mlp.unified_apply_mlp`.

        Raises:
            InvalidInputError: adapters while experts are balanced, which would stay behind when
                their experts move; others see there.
        """
        if lora is not None and self._load is not None:
            raise InvalidInputError(
                "adapters of experts that are balanced by load",
                "they belong to places, which get other experts",
                "Serve adapters without load balancing.",
            )
        return self.method.apply(
            self, rows, group_list, self.activation, self.dtype, rows_scale, lora
        )

    def forward(
        self, rows: torch.Tensor, group_list: GroupList, lora: RowsLoRA | None = None
    ) -> torch.Tensor:
        """:meth:`forward_impl` of rows that are not quantised."""
        return self.forward_impl(rows, group_list, lora=lora)

    def forward_tokens(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        shared: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """The weighted sum over the experts of each token, where this rank has all or a slice.

        Args:
            x: ``[T, H]`` in the model's dtype; ``T`` may be 0.
            weights: ``[T, k]`` float32.
            ids: ``[T, k]`` places of this rank, each in ``[0, places)``.
            shared: ``[2 * S, H]`` and ``[H, S]`` of a shared expert with the same activation, in
                the model's dtype, added to the result; or None.

        Returns:
            ``[T, H]`` in the model's dtype; with tensor parallelism the results are to be summed.
        """
        return self.method.apply_to_tokens(
            self, x, weights, ids, self.activation, self.dtype, shared
        )

    def init_eplb(
        self, load: torch.Tensor, num_unpadded_tokens: torch.Tensor | None = None
    ) -> None:
        """Count the tokens of each place from now on.

        Args:
            load: ``[places of all ranks]`` int32, added to by :meth:`to_physical`; see
                :meth:`ascend_fused_moe.eplb.ExpertLoadWindow.of_layer`.
            num_unpadded_tokens: ``[1]`` int32 or int64, overwritten where it lies before each
                step: rows from there on are padding, and are not counted. None counts all rows.

        Raises:
            InvalidInputError: another number of places.
        """
        if load.shape != (self.maps.placement.places,):
            raise InvalidInputError(
                f"load of shape {list(load.shape)}",
                f"there are {self.maps.placement.places} places",
                "Pass one counter for each place of all ranks.",
            )
        self._load = load
        self._unpadded = num_unpadded_tokens

    def to_physical(
        self,
        ids: torch.Tensor,
        num_unpadded_tokens: torch.Tensor | None = None,
        *,
        offset: int = 0,
        own: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """The places that tokens take for logical experts, counted after :meth:`init_eplb`.

        Args:
            ids: ``[T, k]``.
            num_unpadded_tokens: as in :meth:`init_eplb`, and instead of it.
            offset: see :meth:`ascend_fused_moe.eplb.EplbLayerMaps.to_physical`.
            own: half-open range of the rows that this rank counts, where others count theirs; its
                padding is counted off from its first row. None counts all.
        """
        if num_unpadded_tokens is None:
            num_unpadded_tokens = self._unpadded
        if own is None or self._load is None:
            return self.maps.to_physical(ids, self._load, num_unpadded_tokens, offset=offset)
        first, last = own
        self.maps.to_physical(
            ids[first:last], self._load, num_unpadded_tokens, offset=offset + first
        )
        return self.maps.to_physical(ids, offset=offset)

    def get_expert_weights(self) -> list[torch.Tensor]:
        """``[places, -1]`` views of everything that belongs to experts, as vLLM's EPLB takes it."""
        return [one.data.view(len(one), -1) for one in self.parameters(recurse=False)]

    def get_eplb_weight_views(self) -> dict[str, EplbExpertTensorList]:
        """The same by name, expert by expert."""
        parameters = self.named_parameters(recurse=False)
        return {name: EplbExpertTensorList(one.data, name) for name, one in parameters}

    def update_expert_map(self, placement: ExpertPlacement) -> None:
        """Decide anew where experts lie, before any weight is loaded.

        Raises:
            InvalidInputError: weights were loaded, which would then belong to other experts; or a
                placement that does not fit.
        """
        held = {e for e in self.maps.placement.on_rank(self.maps.rank) if e != EMPTY}
        if len(self._missing) != len(held) * len(self._parts()):
            raise InvalidInputError(
                "a new expert map",
                "weights were loaded, and would belong to other experts than the map says",
                "Use rebalance(), which moves them too.",
            )
        problems = self.maps.problems_with(placement)
        if problems:
            raise InvalidInputError(
                f"a placement of {placement.places} places",
                "; ".join(problems),
                "Pass the placement of this layer.",
            )
        self.maps.replace(placement)
        held = {e for e in placement.on_rank(self.maps.rank) if e != EMPTY}
        self._missing = {(expert, part) for expert in held for part in self._parts()}

    def rebalance(self, table: ExpertPlacement | Sequence[int], exchange: Exchange) -> int:
        """Move experts; see :func:`ascend_fused_moe.eplb.rebalance_layer`."""
        return rebalance_layer(EplbLayer(self.maps, self.get_eplb_weight_views()), table, exchange)

    def _parts(self) -> list[str]:
        """What a checkpoint has for each expert."""
        names = [name for name, _ in self.named_parameters(recurse=False)]
        return [self._part(n, w) for n in names for w in self._slice.parts_of(n)]

    @staticmethod
    def _part(name: str, which: str) -> str:
        return which + name[len(name.split("_", 1)[0]) :]
