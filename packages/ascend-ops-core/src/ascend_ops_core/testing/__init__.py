"""What the tests of every package share: tolerances, a strict environment, isolated imports.

Needs torch only.
"""

from ascend_ops_core.testing.environment import strict_environment
from ascend_ops_core.testing.isolation import run_python
from ascend_ops_core.testing.tolerances import TOLERANCES, Tolerance, assert_close

__all__ = ["TOLERANCES", "Tolerance", "assert_close", "run_python", "strict_environment"]
