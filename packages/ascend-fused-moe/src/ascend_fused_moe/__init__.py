"""Mixture-of-experts routing and expert computation of the Ascend stack; needs torch only."""

__version__ = "0.1.0"

__all__ = ["__version__"]
