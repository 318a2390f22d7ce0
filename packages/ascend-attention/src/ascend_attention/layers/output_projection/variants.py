"""The variants of the output projection as data, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.support import Support, first_refusal

AUTO = "auto"

_HALVES = (torch.bfloat16, torch.float16)
_MX_PAIR = 64  # columns that two scales of MXFP8 cover, which A5's product takes together


@dataclass(frozen=True)
class ProjectionSettings:
    """What the choice depends on.

    Attributes:
        family: device family, or ``"cpu"``.
        heads: query heads of the model.
        head_dim: width of a head.
        groups: output groups of the model, which divide the heads.
        rank: low rank of a group.
        dtype: of the model.
        tensor_parallel: ranks that share the heads.
        data_parallel: replicas, each with tokens of its own.
        exchange: ranks of a group of ``otp``; 1 for none.
    """

    family: str
    heads: int
    head_dim: int
    groups: int
    rank: int
    dtype: torch.dtype = torch.bfloat16
    tensor_parallel: int = 1
    data_parallel: int = 1
    exchange: int = 1

    @property
    def group_channels(self) -> int:
        """Channels of one group, K."""
        return self.heads // self.groups * self.head_dim

    @property
    def ranks_per_group(self) -> int:
        """Tensor-parallel ranks that share the heads of one group; 1 where each has whole ones."""
        return max(1, self.tensor_parallel // self.groups)


@dataclass(frozen=True)
class ProjectionPart:
    """Half-open ranges of the weights that one rank holds.

    Attributes:
        groups: output groups.
        channels: of each group's K input channels.
        latents: columns of the second weight, of all ``G * N``.
    """

    groups: tuple[int, int]
    channels: tuple[int, int]
    latents: tuple[int, int]

    @property
    def num_groups(self) -> int:
        return self.groups[1] - self.groups[0]

    @property
    def num_channels(self) -> int:
        return self.channels[1] - self.channels[0]

    @property
    def num_latents(self) -> int:
        return self.latents[1] - self.latents[0]

    @classmethod
    def of(
        cls, settings: ProjectionSettings, tensor_rank: int = 0, exchange_rank: int = 0
    ) -> ProjectionPart:
        """The part of one rank, for settings that some variant supports.

        Args:
            settings: the model and its layout.
            tensor_rank: place in the tensor-parallel group.
            exchange_rank: place in the group of ``otp``.
        """
        shared = settings.ranks_per_group
        if shared > 1:
            group, place = divmod(tensor_rank, shared)
            channels, latents = settings.group_channels // shared, settings.rank // shared
            first = group * settings.rank + place * latents
            return cls(
                (group, group + 1),
                (place * channels, (place + 1) * channels),
                (first, first + latents),
            )
        ranks = settings.tensor_parallel * settings.exchange
        groups = settings.groups // ranks
        first = (tensor_rank * settings.exchange + exchange_rank) * groups
        return cls(
            (first, first + groups),
            (0, settings.group_channels),
            (first * settings.rank, (first + groups) * settings.rank),
        )


@dataclass(frozen=True)
class Variant:
    """One way to compute the output projection.

    Attributes:
        name: as users write it.
        families: device families that have it, ``"cpu"`` among them.
        needs: what it takes, in words.
        weights: what of both weights a rank holds, in words.
        collective: what is exchanged inside the layer. Every variant leaves the sum over the
            tensor-parallel ranks to its caller.
        limits: refuses settings with the limit that they break.
        layout: ``plain``, ``otp`` or ``olora_tp``, how ranks share the weights.
        quantised: both products are in MXFP8.
    """

    name: str
    families: tuple[str, ...]
    needs: str
    weights: str
    collective: str
    limits: Callable[[ProjectionSettings], Support]
    layout: str = "plain"
    quantised: bool = False

    def supports(self, settings: ProjectionSettings) -> Support:
        """Whether the variant can be used, and why not."""
        if settings.family not in self.families:
            have = ", ".join(self.families)
            return Support(f"it exists on {have}, not on {settings.family}")
        return self.limits(settings)


def _whole_groups(settings: ProjectionSettings) -> tuple[bool, str]:
    size, groups = settings.tensor_parallel, settings.groups
    return groups % size == 0, f"tensor_parallel_size={size} must divide o_groups={groups}"


def _no_exchange(settings: ProjectionSettings) -> tuple[bool, str]:
    size = settings.exchange
    return size == 1, f"o_proj_tensor_parallel_size={size} is for otp and otp_fp8"


def _plain(settings: ProjectionSettings) -> Support:
    return first_refusal(_whole_groups(settings), _no_exchange(settings))


def _otp(settings: ProjectionSettings) -> Support:
    size, replicas = settings.exchange, settings.data_parallel
    local = settings.groups // settings.tensor_parallel
    return first_refusal(
        _whole_groups(settings),
        (size > 1, f"o_proj_tensor_parallel_size={size}, at least 2 ranks exchange tokens"),
        (
            replicas % size == 0,
            f"o_proj_tensor_parallel_size={size} must divide data_parallel_size={replicas}, since "
            "ranks exchange tokens that only they have",
        ),
        (
            local % size == 0,
            f"o_proj_tensor_parallel_size={size} must divide the {local} groups of a "
            "tensor-parallel rank",
        ),
    )


def _olora_tp(settings: ProjectionSettings) -> Support:
    size, groups, shared = settings.tensor_parallel, settings.groups, settings.ranks_per_group
    return first_refusal(
        _no_exchange(settings),
        (
            size > groups and size % groups == 0,
            f"tensor_parallel_size={size} must be a multiple of o_groups={groups} beyond it",
        ),
        (
            settings.heads % size == 0,
            f"tensor_parallel_size={size} must divide num_attention_heads={settings.heads}",
        ),
        (
            settings.rank % shared == 0,
            f"{shared} ranks share a group, which must divide o_lora_rank={settings.rank}",
        ),
    )


def _in_mxfp8(
    layout: Callable[[ProjectionSettings], Support],
) -> Callable[[ProjectionSettings], Support]:
    """The limits of a layout, and those of its products in MXFP8."""

    def limits(settings: ProjectionSettings) -> Support:
        answer = layout(settings)
        if not answer:
            return answer
        part, dtype = ProjectionPart.of(settings), settings.dtype
        return first_refusal(
            (dtype in _HALVES, f"dtype {dtype}, products give bfloat16 or float16"),
            *(
                (width % _MX_PAIR == 0, f"{what}={width} must be a multiple of {_MX_PAIR}")
                for what, width in (
                    ("a rank's channels of a group", part.num_channels),
                    ("a rank's low-rank channels", part.num_latents),
                )
            ),
        )

    return limits


_ALL = ("cpu", "A2", "A3", "A5")

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "plain",
        _ALL,
        "tensor_parallel_size divides o_groups",
        "whole groups, those of its heads",
        "none",
        _plain,
    ),
    Variant(
        "otp",
        _ALL,
        "o_proj_tensor_parallel_size divides data_parallel_size and a rank's groups",
        "a part of its groups, for the tokens of all ranks of its OTP group",
        "all-to-all of groups against tokens, then reduce-scatter of tokens",
        _otp,
        "otp",
    ),
    Variant(
        "olora_tp",
        _ALL,
        "tensor_parallel_size is a multiple of o_groups; the ranks of a group divide o_lora_rank",
        "its heads' channels of wo_a for the whole low rank, its part of the low rank of wo_b",
        "all-to-all of low-rank terms among the ranks of a group",
        _olora_tp,
        "olora_tp",
    ),
)
VARIANTS += tuple(
    replace(
        one,
        name="fp8" if one.name == "plain" else f"{one.name}_fp8",
        families=("A5",),
        needs=f"as {one.name}, dtype bfloat16 or float16, a rank's widths in multiples of 64",
        weights=f"as {one.name}, quantised to MXFP8 after loading; tokens in every step",
        limits=_in_mxfp8(one.limits),
        quantised=True,
    )
    for one in VARIANTS
)
"""Every variant. ``auto`` takes ``otp`` where its size is set, else the first of ``plain`` and
``olora_tp`` that fits; those in MXFP8, which changes results, are used where they are asked for."""


@dataclass(frozen=True)
class ProjectionChoice:
    """What was chosen.

    Attributes:
        variant: the variant.
        refused: names of those that the settings do not allow, each with its reason.
    """

    variant: Variant
    refused: tuple[tuple[str, str], ...]


def choose_projection(asked: str, settings: ProjectionSettings) -> ProjectionChoice:
    """Choose the variant for a model and its layout.

    Args:
        asked: a variant's name, or ``"auto"``; see :data:`VARIANTS`.
        settings: the model and its layout.

    Raises:
        InvalidInputError: no such variant, or none that was asked for takes the settings.
    """
    known = [one.name for one in VARIANTS]
    if asked != AUTO and asked not in known:
        raise InvalidInputError(
            f"o_proj={asked!r}", f"known are {', '.join([AUTO, *known])}", "Choose one of them."
        )
    answers = {one.name: one.supports(settings) for one in VARIANTS}
    refused = tuple((name, answer.reason) for name, answer in answers.items() if not answer)
    wanted = [asked]
    if asked == AUTO:
        wanted = ["otp"] if settings.exchange > 1 else ["plain", "olora_tp"]
    for variant in VARIANTS:
        if variant.name in wanted and answers[variant.name]:
            return ProjectionChoice(variant, refused)
    possible = [name for name in known if answers[name]]
    raise InvalidInputError(
        f"o_proj={asked!r} on {settings.family} with tensor_parallel_size="
        f"{settings.tensor_parallel}",
        "; ".join(f"{name}: {answers[name].reason}" for name in wanted),
        f"Use {' or '.join(possible)}." if possible else "Change the parallel sizes.",
    )
