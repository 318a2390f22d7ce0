"""Which NPU implementation of an operator runs, and why the others do not."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from ascend_ops_core.registry import Operator

logger = logging.getLogger(__name__)

VARIABLE = "ASCEND_OPS"
"""``op=implementation`` pairs, separated by commas, that force a choice."""

_logged: set[tuple[str, str, tuple[str, ...]]] = set()


@dataclass(frozen=True)
class Choice:
    """The implementation chosen for given arguments.

    Attributes:
        implementation: its name.
        refused: names of those preferred before it, each with its reason.
        forced: whether ``ASCEND_OPS`` asked for it.
    """

    implementation: str
    refused: tuple[tuple[str, str], ...] = ()
    forced: bool = False


def forced_implementation(name: str, known: tuple[str, ...]) -> str | None:
    """Return what ``ASCEND_OPS`` says about an operator.

    Raises:
        InvalidInputError: an entry that is no pair, or an implementation the operator lacks.
    """
    setting = os.environ.get(VARIABLE)
    if not setting:
        return None
    for entry in setting.split(","):
        operator, separator, implementation = entry.strip().partition("=")
        if not separator:
            raise InvalidInputError(
                f"{VARIABLE}={setting!r}",
                f"{entry!r} is not of the form operator=implementation",
                "For example ASCEND_OPS=rms_norm=triton,swiglu=torch_npu.",
            )
        if operator == name:
            if implementation not in known:
                raise InvalidInputError(
                    f"{VARIABLE}={setting!r}",
                    f"{name} has {', '.join(known)}, not {implementation!r}",
                    "Choose one of them or leave the operator out.",
                )
            return implementation
    return None


def choose(
    operator: Operator, facts: DeviceFacts, args: tuple[Any, ...], forced: str | None
) -> Choice:
    """Choose for one operator; see :meth:`ascend_ops_core.registry.Operator.choose`."""
    if forced is not None:
        support = operator.supports(forced, facts, *args)
        if not support:
            raise InvalidInputError(
                f"{VARIABLE} forces {operator.name}={forced} on {facts.family}",
                support.reason,
                f"Take it out of {VARIABLE} or change the input.",
            )
        return Choice(forced, forced=True)
    refused: list[tuple[str, str]] = []
    for name in operator.npu:
        support = operator.supports(name, facts, *args)
        if support:
            choice = Choice(name, tuple(refused))
            _log_once(operator, facts, choice)
            return choice
        refused.append((name, support.reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
    raise InvalidInputError(
        f"{operator.name} on {facts.family}",
        f"no implementation takes these inputs ({reasons})",
        "Change the input to meet one of these limits.",
    )


def _log_once(operator: Operator, facts: DeviceFacts, choice: Choice) -> None:
    if not choice.refused:
        return
    key = (operator.qualified_name, facts.family, tuple(reason for _, reason in choice.refused))
    if key not in _logged:
        _logged.add(key)
        reasons = "; ".join(f"{name}: {reason}" for name, reason in choice.refused)
        logger.warning(
            "%s on %s runs as %s because %s",
            operator.qualified_name,
            facts.family,
            choice.implementation,
            reasons,
        )
