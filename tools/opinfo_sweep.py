"""torch's operators on the simulated NPU, compared with the CPU on torch's own sample inputs.

    ./tools/dev run -- python tools/opinfo_sweep.py [NAME ...]

Takes half a minute on an idle machine; no session of the tests runs it. Every operator of torch's
OpInfo list runs on up to eight of its samples, in a process that is replaced when it dies. Prints a
line for each operator that does not give what the CPU gives, and the counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

SAMPLES = 8
OUTCOMES = ("equal", "nothing to compare", "refused", "different", "crash")


def _operators(names: list[str]) -> list[Any]:
    # torch's list imports its test base class, of which nothing is used here.
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if not names or op.name in names]


def _dtype(op: Any) -> torch.dtype:
    known = op.supported_dtypes("cpu")
    wanted = (torch.float32, torch.int64, torch.bool, torch.complex64)
    return next((one for one in wanted if one in known), next(iter(known)))


def _outcome(op: Any) -> tuple[str, str]:
    """Return one of OUTCOMES for an operator, and what is to be said about it.

    Random results and uninitialised memory are compared by shape and dtype alone.
    """
    compared = False
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", _dtype(op)), SAMPLES))
    except Exception as error:  # a sample of torch's that its CPU build cannot make
        return "nothing to compare", f"no samples: {_short(error)}"
    for sample in samples:
        arguments = (sample.input, sample.args, sample.kwargs)
        try:
            expected, again = (_run(op, arguments, "cpu") for _ in range(2))
        except Exception:
            continue  # the CPU refuses it
        try:
            actual = _run(op, arguments, "npu")
        except Exception as error:
            return "refused", _short(error)
        elsewhere = _elsewhere(actual)
        if elsewhere:
            return "different", f"a result is on {elsewhere}"
        exact = "empty" not in op.name and not _difference(again, expected, exact=True)
        difference = _difference(actual, expected, exact)
        if difference:
            return "different", difference
        compared = compared or exact
    return ("equal", "") if compared else ("nothing to compare", "")


def _run(op: Any, arguments: tuple[Any, ...], device: str) -> Any:
    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            copy = value.detach().clone()
            return copy.to(device) if device != "cpu" else copy
        return device if isinstance(value, (str, torch.device)) and str(value) == "cpu" else value

    first, args, kwargs = tree_map(moved, arguments)
    torch.manual_seed(1)
    return op(first, *args, **kwargs)


def _elsewhere(results: Any) -> str:
    """Name the device of a result that is not on the simulated one, if there is one."""
    kinds = (one.device.type for one in tree_flatten(results)[0] if isinstance(one, torch.Tensor))
    return next((kind for kind in kinds if kind != "npu"), "")


def _difference(actual: Any, expected: Any, exact: bool) -> str:
    """Say in what two results differ; others than ``exact`` ones by shape and dtype alone."""
    ours, theirs = tree_flatten(actual)[0], tree_flatten(expected)[0]
    if len(ours) != len(theirs):
        return f"{len(ours)} results, not {len(theirs)}"
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            if (one.shape, one.dtype) != (other.shape, other.dtype):
                return f"{one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}"
            if exact:
                try:
                    torch.testing.assert_close(one.cpu(), other, equal_nan=True)
                except AssertionError as error:
                    return _short(error)
        elif exact and type(other) in (bool, int, float, complex) and one != other == other:
            return f"{one}, not {other}"
    return ""


def _short(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:160]


def _work(names: list[str], first: int) -> None:
    """Print the outcome of every operator from number ``first`` on, a line each."""
    from ascend_ops_core.testing.simulated_npu import install

    warnings.simplefilter("ignore")
    operators = _operators(names)
    install("A3", kernels="reference", with_contract=False)
    for op in operators[first:]:
        full_name = ".".join(part for part in (op.name, op.variant_test_name) if part)
        print(json.dumps([full_name, "crash", ""]), flush=True)
        print(json.dumps([full_name, *_outcome(op)]), flush=True)


def outcomes(names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, outcome and remark of every operator."""
    done, alive = 0, False
    while not alive:
        command = [sys.executable, __file__, "--work", str(done), *names]
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            begun: tuple[str, str, str] | None = None
            for line in process.stdout:
                if not line.startswith('["'):
                    continue  # printed by an operator
                name, outcome, remark = json.loads(line)
                if begun is None:
                    begun = (name, outcome, remark)
                    continue
                begun, done = None, done + 1
                yield name, outcome, remark
        alive = process.returncode == 0
        if begun is not None:
            done += 1
            yield begun[0], "crash", f"the process ended with status {process.returncode}"
        elif not alive:
            raise SystemExit(f"the process ended with status {process.returncode} on its own")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="operators; all by default")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        _work(options.names, options.work)
        return 0
    counts: Counter[str] = Counter()
    for name, outcome, remark in outcomes(options.names):
        counts[outcome] += 1
        if outcome not in ("equal", "nothing to compare"):
            print(f"{name}: {outcome}: {remark}", flush=True)
    print(", ".join(f"{counts[one]} {one}" for one in OUTCOMES), f"of {counts.total()} operators")
    return 0


if __name__ == "__main__":
    sys.exit(main())
