"""Speculative decoding: operators that verify drafts, and their adaptor to vLLM.

Importing this package imports neither torch nor vLLM; :mod:`ascend_specdec.ops.verification` needs
torch alone.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
