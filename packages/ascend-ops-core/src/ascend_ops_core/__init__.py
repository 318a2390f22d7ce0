"""Base operators of the Ascend stack: norms, rotary embedding, hyper-connections, linear layers.

Importing this package needs torch and nothing else. Every operator has a definition in plain
torch (``reference.py``); on a CPU the ``cpu-kernels`` extra (numba) adds faster kernels, which
are chosen by :mod:`ascend_ops_core.cpu_kernels`.
"""

from ascend_ops_core.errors import InvalidInputError

__version__ = "0.1.0"

__all__ = ["InvalidInputError", "__version__"]
