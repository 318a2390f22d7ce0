"""Which tensors of a checkpoint belong to the vision tower, and where each goes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from torch import nn

from ascend_models_kimi.kimi_k3.vision.config import VisionSpec
from ascend_models_kimi.kimi_linear.weights import VISION_PREFIXES, Rules


def vision_rules(spec: VisionSpec, module: str) -> Rules:
    """Rules of all tensors; every rank holds all of them.

    Args:
        spec: the tower's config.
        module: in front of all names of parameters.
    """
    hidden, width, side = spec.hidden_size, spec.qkv_hidden_size, spec.patch_size
    inter, merged, text = spec.intermediate_size, spec.merged_size, spec.text_hidden_size
    tower = "vision_tower"
    yield (
        f"{tower}.patch_embed.proj.weight",
        TensorRule(
            (hidden, 3, side, side), f"{module}patch_embedding", view=(hidden, spec.patch_values)
        ),
    )
    table = (spec.table_rows, spec.table_columns, hidden)
    yield f"{tower}.patch_embed.pos_emb.weight", TensorRule(table, f"{module}table")
    for layer in range(spec.num_hidden_layers):
        name, param = f"{tower}.encoder.blocks.{layer}", f"{module}layers.{layer}"
        for tensor, target, shape in (
            ("norm0", "norm0", (hidden,)),
            ("norm1", "norm1", (hidden,)),
            ("wqkv", "qkv", (3 * width, hidden)),
            ("wo", "out", (hidden, width)),
            ("mlp.fc0", "fc0", (inter, hidden)),
            ("mlp.fc1", "fc1", (hidden, inter)),
        ):
            yield f"{name}.{tensor}.weight", TensorRule(shape, f"{param}.{target}")
    norm = TensorRule((hidden,), f"{module}final_norm")
    yield f"{tower}.encoder.final_layernorm.weight", norm
    for tensor, target, shape in (
        ("proj.0", "linear_1", (merged, merged)),
        ("proj.2", "linear_2", (text, merged)),
        ("post_norm", "post_norm", (text,)),
    ):
        yield f"mm_projector.{tensor}.weight", TensorRule(shape, f"{module}projector.{target}")


@dataclass(frozen=True)
class WithinRule(TensorRule):
    """A rule of a model that is a module of another one.

    Attributes:
        module: its name.
        inner: the rule as the model itself has it.
    """

    module: str = ""
    inner: TensorRule | None = None

    @classmethod
    def of(cls, module: str, inner: TensorRule) -> WithinRule:
        """The rule of ``inner`` for the other model."""
        return cls(
            inner.shape,
            f"{module}.{inner.param}",
            below=inner.below,
            optional=inner.optional,
            module=module,
            inner=inner,
        )

    @property
    def own(self) -> TensorRule:
        """The rule as the model itself has it."""
        assert self.inner is not None
        return self.inner

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the checkpoint may have."""
        return self.own.shapes

    @property
    def loadable(self) -> tuple[torch.dtype, ...]:
        """Dtypes in which the checkpoint may store it."""
        return self.own.loadable

    @property
    def filled(self) -> str | None:
        """The parameter that it goes to, if any."""
        filled = self.own.filled
        return None if filled is None else f"{self.module}.{filled}"

    @property
    def checked_module(self) -> str | None:
        """A module that is checked once all is loaded."""
        checked = self.own.checked_module
        return None if checked is None else f"{self.module}.{checked}"

    def value_problems(self, name: str, tensor: torch.Tensor) -> list[str]:
        """Values that would make numbers plausible and wrong."""
        return self.own.value_problems(name, tensor)

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """Copy this rank's part of ``tensor`` to its place."""
        self.own.load(tensor, model.get_submodule(self.module))


def text_table(text: WeightTable, module: str) -> WeightTable:
    """The text model's table where that is a module of the whole model.

    Args:
        text: as the text model itself has it.
        module: its name in the whole model.
    """
    rules = {name: WithinRule.of(module, rule) for name, rule in text.rules.items()}
    return WeightTable(rules, text.ignored_prefixes)


def whole_table(text: WeightTable, spec: VisionSpec) -> WeightTable:
    """The tensors of a model with images: those of the text model, and the vision tower's."""
    vision = dict(vision_rules(spec, "vision_tower."))
    ignored = [prefix for prefix in text.ignored_prefixes if prefix not in VISION_PREFIXES]
    return WeightTable(text.rules | vision, tuple(ignored))
