"""Quantised checkpoints: their formats, which layer has which, and the weights that models hold.

==================  ============================================================================
module              subject
==================  ============================================================================
``formats``         how a weight is stored, as data, and the rules for special values
``schemes``         the schemes of DeepSeek, ModelSlim and compressed-tensors
``descriptions``    what a checkpoint says of itself: DeepSeek's, MiniMax' and ModelSlim's way
``compressed_tensors``  the same in compressed-tensors' way
``layer_rules``     what a model adds: packed, renamed and never quantised layers
``resolver``        which layer has which scheme
``layout``          where a rank keeps which part of a layer's tensors
``stored_values``   bringing tensors into the model's form, and refusing values
``weight``          the weight as a module
==================  ============================================================================
"""

from ascend_ops_core.quantized_weights.formats import Codes, Role, Rows, Scheme, StoredTensor
from ascend_ops_core.quantized_weights.layer_rules import LayerRules
from ascend_ops_core.quantized_weights.layout import Placement, WeightLayout, WeightPart
from ascend_ops_core.quantized_weights.resolver import QuantizationResolver, read_modelslim
from ascend_ops_core.quantized_weights.stored_values import value_problem

__all__ = [
    "Codes",
    "LayerRules",
    "Placement",
    "QuantizationResolver",
    "Role",
    "Rows",
    "Scheme",
    "StoredTensor",
    "WeightLayout",
    "WeightPart",
    "read_modelslim",
    "value_problem",
]
