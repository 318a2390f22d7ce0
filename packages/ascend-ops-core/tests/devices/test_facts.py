"""Device facts: complete, sourced, and loud where a figure is not known."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.devices import COMPILED_FAMILIES, FAMILIES, facts_of, facts_of_soc
from ascend_ops_core.errors import InvalidInputError

NAMES = (
    "cube_cores",
    "vector_cores",
    "ub_bytes",
    "l1_bytes",
    "l0a_bytes",
    "l0b_bytes",
    "l0c_bytes",
    "l2_bytes",
    "hbm_bytes",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_figure_has_a_source(family: str) -> None:
    facts = facts_of(family)
    assert set(facts.figures) == set(NAMES)
    sourced = [*facts.figures.values(), *facts.kv_blocks.values(), facts.dtypes]
    sourced += [facts.compile_target, *(one for pair in facts.socs.values() for one in pair)]
    assert all(len(figure.source) > 10 for figure in sourced)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_property_is_the_figure_or_refuses_with_its_reason(family: str, name: str) -> None:
    facts = facts_of(family)
    figure = facts.figure(name)
    if figure.value is None:
        with pytest.raises(InvalidInputError, match=f"{name} of {family}: unknown"):
            getattr(facts, name)
    else:
        assert getattr(facts, name) == figure.value


def test_limits_are_those_that_the_compiler_enforces() -> None:
    # bits, from the compiler's own overflow message
    assert facts_of("A2").ub_bytes * 8 == 1_572_864
    assert facts_of("A3").ub_bytes * 8 == 1_572_864
    assert facts_of("A5").ub_bytes * 8 == 2_031_616


def test_only_310p_has_no_triton() -> None:
    assert COMPILED_FAMILIES == ("A2", "A3", "A5")
    assert "triton-ascend does not support" in facts_of("310P").compile_target.source


def test_fp8_is_of_a5_only() -> None:
    having = [f for f in FAMILIES if torch.float8_e4m3fn in (facts_of(f).dtypes.value or ())]
    assert having == ["A5"]


@pytest.mark.parametrize(
    ("path", "taken", "refused"),
    [
        ("prefill", [128, 256, 512], [16, 64, 192, 640]),
        ("decode", [16, 48, 512], [8, 24, 528]),
        ("decode_int8", [32, 512], [16, 48]),
        ("mla", [16, 128], [32, 64, 256]),
        ("mla_nz", [128], [16]),
    ],
)
def test_block_sizes(path: str, taken: list[int], refused: list[int]) -> None:
    sizes = facts_of("A2").kv_blocks[path].value
    assert sizes is not None
    assert [rows for rows in taken + refused if sizes.allows(rows)] == taken


@pytest.mark.parametrize(
    ("soc", "family", "vector_cores"),
    [
        ("Ascend910B1", "A2", 48),
        ("Ascend910B3", "A2", 40),
        ("Ascend910B2C", "A2", 48),
        ("Ascend910_9362", "A3", 40),
        ("Ascend910_9391", "A3", 48),
        ("Ascend910_9599", "A5", 72),
        ("Ascend950PR_9589", "A5", 64),
    ],
)
def test_soc_names(soc: str, family: str, vector_cores: int) -> None:
    facts = facts_of_soc(soc)
    assert (facts.family, facts.vector_cores) == (family, vector_cores)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"device family 'A9': known are A2, A3, A5, 310P"):
        facts_of("A9")
    with pytest.raises(InvalidInputError, match="soc 'Ascend910A'"):
        facts_of_soc("Ascend910A")
    with pytest.raises(InvalidInputError, match="figure 'l3_bytes'"):
        facts_of("A2").figure("l3_bytes")


def test_facts_are_keys() -> None:
    table = {facts_of(family): family for family in FAMILIES}
    assert table[facts_of("A5")] == "A5"
