"""What is known about each Ascend device family, and which one is here."""

from __future__ import annotations

from ascend_ops_core.devices.current import current_facts, device_family
from ascend_ops_core.devices.facts import FAMILIES, DeviceFacts, facts_of

__all__ = ["FAMILIES", "DeviceFacts", "current_facts", "device_family", "facts_of"]
