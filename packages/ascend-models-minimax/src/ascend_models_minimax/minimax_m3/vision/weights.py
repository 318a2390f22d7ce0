"""Which tensors of a checkpoint belong to the vision tower, and where each goes."""

from __future__ import annotations

from ascend_ops_core.checkpoint.table import TensorRule, WeightTable

from ascend_models_minimax.minimax_m3.vision.config import VisionSpec
from ascend_models_minimax.minimax_m3.weights import Rules


def vision_rules(spec: VisionSpec, module: str) -> Rules:
    """Rules of all tensors; every rank holds all of them.

    Args:
        spec: the tower's config.
        module: in front of all names of parameters.
    """
    hidden = spec.hidden_size
    tower = "vision_tower.vision_model"
    patch = (hidden, spec.num_channels, spec.temporal_patch_size, spec.patch_size, spec.patch_size)
    yield (
        f"{tower}.embeddings.patch_embedding.weight",
        TensorRule(patch, f"{module}patch_embedding.weight", view=(hidden, spec.patch_values)),
    )
    yield from _vectors(f"{tower}.pre_layrnorm", f"{module}pre_norm", hidden)
    for layer in range(spec.num_hidden_layers):
        name, param = f"{tower}.encoder.layers.{layer}", f"{module}layers.{layer}"
        for norm in ("layer_norm1", "layer_norm2"):
            yield from _vectors(f"{name}.{norm}", f"{param}.{norm}", hidden)
        for i, proj in enumerate(("q_proj", "k_proj", "v_proj")):
            rows = (slice(i * hidden, (i + 1) * hidden),)
            for kind, shape in (("weight", (hidden, hidden)), ("bias", (hidden,))):
                yield (
                    f"{name}.self_attn.{proj}.{kind}",
                    TensorRule(shape, f"{param}.qkv.{kind}", rows),
                )
        yield from _linear(f"{name}.self_attn.out_proj", f"{param}.out", hidden, hidden)
        yield from _linear(f"{name}.mlp.fc1", f"{param}.fc1", hidden, spec.intermediate_size)
        yield from _linear(f"{name}.mlp.fc2", f"{param}.fc2", spec.intermediate_size, hidden)
    text, width = spec.text_hidden_size, spec.projector_width
    for name, param, first, bias in (
        ("multi_modal_projector", "projector", hidden, spec.projector_bias),
        ("patch_merge_mlp", "merger", text * spec.spatial_merge_size**2, spec.merge_bias),
    ):
        for linear, sizes in (("linear_1", (first, width)), ("linear_2", (width, text))):
            yield from _linear(f"{name}.{linear}", f"{module}{param}.{linear}", *sizes, bias=bias)


def whole_table(text: WeightTable, spec: VisionSpec) -> WeightTable:
    """The tensors of a model with images: those of the text model, and the vision tower's."""
    vision = dict(vision_rules(spec, "vision_tower."))
    ignored = [
        prefix
        for prefix in text.ignored_prefixes
        if not any(name.startswith(prefix) for name in vision)
    ]
    return WeightTable(text.rules | vision, tuple(ignored))


def _linear(name: str, param: str, inputs: int, outputs: int, *, bias: bool = True) -> Rules:
    yield f"{name}.weight", TensorRule((outputs, inputs), f"{param}.weight")
    if bias:
        yield f"{name}.bias", TensorRule((outputs,), f"{param}.bias")


def _vectors(name: str, param: str, width: int) -> Rules:
    for kind in ("weight", "bias"):
        yield f"{name}.{kind}", TensorRule((width,), f"{param}.{kind}")
