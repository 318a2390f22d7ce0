"""What is known about each Ascend device family, and which one is here."""

from __future__ import annotations

from ascend_ops_core.devices.current import (
    DEFAULT_FAMILY,
    chosen_family,
    current_facts,
    device_family,
    use_family,
)
from ascend_ops_core.devices.detect import Detection, detect
from ascend_ops_core.devices.facts import (
    COMPILED_FAMILIES,
    FAMILIES,
    DeviceFacts,
    facts_of,
    facts_of_soc,
)
from ascend_ops_core.devices.figures import BlockSizes, Figure

__all__ = [
    "COMPILED_FAMILIES",
    "DEFAULT_FAMILY",
    "FAMILIES",
    "BlockSizes",
    "Detection",
    "DeviceFacts",
    "Figure",
    "chosen_family",
    "current_facts",
    "detect",
    "device_family",
    "facts_of",
    "facts_of_soc",
    "use_family",
]
