"""Which files a run of chosen marks does not import."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.plugin import leaves_out

UNIT = "not engine and not engine_npu and not serve"
PLAIN = "def test_one(): ...\n"
OF_ALL = "import pytest\n\npytestmark = pytest.mark.{}\n" + PLAIN
LISTED = 'pytestmark = [pytest.mark.{}, pytest.mark.usefixtures("family")]\n' + PLAIN
OF_ONE = PLAIN + "@pytest.mark.{}\ndef test_two(): ...\n"


@pytest.mark.parametrize("mark", ["interpreter", "sim", "engine", "engine_npu", "serve"])
def test_a_name_takes_the_files_that_spell_it(mark: str) -> None:
    for source in (OF_ALL, LISTED, OF_ONE):
        assert not leaves_out(mark, source.format(mark))
        assert leaves_out(mark, source.format("compile"))
        # Neither a longer name nor a word in the text is the mark.
        assert leaves_out(mark, source.format(mark + "_other") + f"# {mark}\n")
    assert leaves_out(mark, PLAIN)


@pytest.mark.parametrize("mark", ["engine", "engine_npu", "serve"])
def test_not_leaves_out_what_is_marked_as_a_whole(mark: str) -> None:
    for source in (OF_ALL, LISTED):
        assert leaves_out(UNIT, source.format(mark))
        assert not leaves_out("", source.format(mark))
    assert not leaves_out(UNIT, OF_ONE.format(mark))
    assert not leaves_out(UNIT, PLAIN)


@pytest.mark.parametrize("mark", ["interpreter", "compile", "contract", "sim"])
def test_proofs_are_left_out_unless_asked_for(mark: str) -> None:
    for wanted in ("", UNIT, "engine or serve"):
        assert leaves_out(wanted, OF_ALL.format(mark))
        assert not leaves_out(wanted, OF_ONE.format(mark))
    assert not leaves_out(f"{mark} or engine", OF_ALL.format(mark))


def test_other_expressions_leave_out_nothing_that_may_fit() -> None:
    for wanted in ("engine or not serve", "not (engine and serve)", "engine and unit"):
        assert not leaves_out(wanted, OF_ALL.format("serve"))
