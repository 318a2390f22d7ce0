"""vLLM's linear layers with this package's products and parallel forms."""

from ascend_ops_core.vllm.linear.cv_wrapper import CVLinearWrapper
from ascend_ops_core.vllm.linear.layers import (
    AscendColumnParallelLinear,
    AscendMergedColumnParallelLinear,
    AscendQKVParallelLinear,
    AscendReplicatedLinear,
    AscendRowParallelLinear,
)
from ascend_ops_core.vllm.linear.layout import ParallelLayout, parallel_layout, use_parallel_layout
from ascend_ops_core.vllm.linear.method import AscendUnquantizedLinearMethod, should_keep_nd
from ascend_ops_core.vllm.linear.table import (
    get_parallel_op,
    get_replicated_op,
    is_moe_layer,
    is_shared_expert_layer,
)

__all__ = [
    "AscendColumnParallelLinear",
    "AscendMergedColumnParallelLinear",
    "AscendQKVParallelLinear",
    "AscendReplicatedLinear",
    "AscendRowParallelLinear",
    "AscendUnquantizedLinearMethod",
    "CVLinearWrapper",
    "ParallelLayout",
    "get_parallel_op",
    "get_replicated_op",
    "is_moe_layer",
    "is_shared_expert_layer",
    "parallel_layout",
    "should_keep_nd",
    "use_parallel_layout",
]
