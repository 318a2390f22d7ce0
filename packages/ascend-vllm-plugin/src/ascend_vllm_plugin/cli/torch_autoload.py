"""Keeps `import torch` from loading torch-npu, for commands that need no device."""

from __future__ import annotations

import os

VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def switch_autoload_off() -> None:
    """Switch torch's autoload off in this process; to be called before torch is imported.

    With torch-npu installed and CANN missing, `import torch` fails otherwise. A command that only
    computes sizes shall work there, too.
    """
    os.environ[VARIABLE] = "0"
