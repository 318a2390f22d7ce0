"""What is planned for: device, layout, load and settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from ascend_attention.caches import DEVICE_CACHES
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.block_pool import Load
from ascend_vllm_plugin.planning.captures import CapturePlan, default_sizes, plan_captures
from ascend_vllm_plugin.planning.drafts import Speculation
from ascend_vllm_plugin.planning.estimates import Step
from ascend_vllm_plugin.planning.hccl import DEFAULT_MIB
from ascend_vllm_plugin.planning.states import StateUse
from ascend_vllm_plugin.planning.weights import Layout

DEVICES = tuple(DEVICE_CACHES)


@dataclass(frozen=True)
class PlanRequest:
    """What is planned for. Names and defaults are vLLM's where vLLM has them.

    Attributes:
        device: a device family of the cache table.
        layout: how the model is spread over cards.
        max_model_len: tokens of a request, or None for all that the model was made for.
        concurrency: requests of that length held at once, over all replicas.
        dtype: the model's dtype, or ``auto``.
        cache_dtype: ``family`` for rows as the family keeps them, ``model`` for the model's dtype,
            as in ``additional_config``.
        kv_dtype: ``auto``, or the dtype in which key-value rows are kept anyway.
        weight_format: how matrices are stored, or ``auto`` for what config.json says.
        block_size: tokens per compressed block, or None for the family's default.
        memory_bytes: memory of a card, or None for what is known of the family.
        gpu_memory_utilization: share of it that vLLM may use.
        kv_cache_memory_bytes: memory of the caches, or None for what is left.
        max_num_batched_tokens: tokens of a step.
        max_num_seqs: requests of a step.
        speculative_tokens: tokens that are drafted in a step; 0 loads no draft.
        draft: how, if not by the model's own MTP layers.
        prefix_caching: whether prefixes are cached for models with recurrent states, where vLLM
            does so only if asked; other models' prefixes are.
        async_scheduling: whether the next step is scheduled before the last one is settled.
        graphs: whether decode steps are captured (never on a CPU).
        capture_sizes: numbers of tokens to capture, or None for vLLM's own.
        hccl_buffer_mib: ``HCCL_BUFFSIZE``.
        o_proj: variant of the output projection, as in ``additional_config``.
        o_proj_tensor_parallel_size: replicas that share an output projection, as there.
    """

    device: str
    layout: Layout = field(default_factory=Layout)
    max_model_len: int | None = None
    concurrency: int = 1
    dtype: str = "auto"
    cache_dtype: str = "family"
    kv_dtype: str = "auto"
    weight_format: str = "auto"
    block_size: int | None = None
    memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    speculative_tokens: int = 0
    draft: Speculation | None = None
    prefix_caching: bool = False
    async_scheduling: bool = True
    graphs: bool = True
    capture_sizes: tuple[int, ...] | None = None
    hccl_buffer_mib: int = DEFAULT_MIB
    o_proj: str = "auto"
    o_proj_tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise InvalidInputError(
                f"device {self.device!r}",
                f"known are {', '.join(DEVICES)}",
                "Use one of these; Ascend 310P cannot serve sparse-attention models.",
            )
        if self.cache_dtype not in ("family", "model"):
            raise InvalidInputError(
                f"cache_dtype={self.cache_dtype!r}", "known are family, model", "Choose one."
            )
        for name in (
            "concurrency",
            "max_num_batched_tokens",
            "max_num_seqs",
            "hccl_buffer_mib",
            "o_proj_tensor_parallel_size",
        ):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_model_len", "memory_bytes", "kv_cache_memory_bytes"):
            value = getattr(self, name)
            if value is not None:
                _at_least(name, value, 1)
        _at_least("speculative_tokens", self.speculative_tokens, 0)
        if self.draft is not None and self.draft.tokens != self.speculative_tokens:
            raise InvalidInputError(
                f"speculative_tokens={self.speculative_tokens}",
                f"the speculative config drafts {self.draft.tokens}",
                "Give one of both.",
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidInputError(
                f"gpu_memory_utilization={self.gpu_memory_utilization}",
                "it is a share of the card's memory",
                "Give a number above 0 and at most 1.",
            )

    @property
    def uses_mtp(self) -> bool:
        """Whether the model's own MTP layers draft."""
        return self.speculative_tokens > 0 and self.draft is None

    @property
    def captures(self) -> CapturePlan:
        """Decode steps that are captured as graphs."""
        if self.device == "cpu" or not self.graphs:
            return CapturePlan()
        return plan_captures(
            self._listed,
            requests=self.step.sequences,
            tokens_per_request=1 + self.speculative_tokens,
            tensor_parallel=self.layout.tensor,
            context_parallel=self.layout.context,
        )

    @property
    def graph_tokens(self) -> int:
        """Tokens for which the engine makes static buffers: the largest size that it lists."""
        captures = self.captures
        listed = captures.sizes if captures.dropped else self._listed
        return max(listed, default=0) if captures.sizes else 0

    @property
    def _listed(self) -> list[int]:
        """The engine's ``cudagraph_capture_sizes``."""
        step, query = self.step, 1 + self.speculative_tokens
        sizes = self.capture_sizes or default_sizes(step.tokens, step.sequences, query)
        return [size for size in sizes if size <= step.tokens]

    @property
    def step(self) -> Step:
        """The largest step."""
        return Step(self.max_num_batched_tokens, self.max_num_seqs, self.speculative_tokens)

    @property
    def states(self) -> StateUse:
        """Recurrent states of a request."""
        return StateUse(self.speculative_tokens, self.prefix_caching)

    @property
    def load(self) -> Load:
        """What one replica's pool must hold."""
        batches = 2 if self.async_scheduling else 1
        return Load(
            batches * self.max_num_batched_tokens,
            batches * (1 + self.speculative_tokens),
            -(-self.concurrency // self.layout.data),
        )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidInputError(f"{name}={value}", f"it must be at least {least}", "Raise it.")
