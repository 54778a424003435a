"""Documentation of rules: their docstrings, and docs/rules.md, which is generated from them."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpu_magics.check.rule as rule_docs
from tests.check.own_rules import BLUE, GREY, RED
from tpu_magics.check.cells import cell_of
from tpu_magics.check.noqa import UNUSED_NOQA
from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import RULES
from tpu_magics.check.syntax import RULE_FAILED, SYNTAX

ROOT = Path(__file__).parents[2]
ALL = (SYNTAX, UNUSED_NOQA, RULE_FAILED, *RULES)
EVERY = pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)


def test_a_docstring_is_taken_apart() -> None:
    found = rule_docs.rule_doc(RED)
    assert (found.code, found.name, found.group) == ("TPU901", "call-of-red", "values")
    assert found.title == "A call of red."
    assert tuple(found.sections) == rule_docs.SECTIONS
    assert found.section("What it does") == "Reports calls of `red`.\n\nA second paragraph."
    assert found.section("Use instead") == "green(1)"


def test_as_text() -> None:
    text = rule_docs.as_text(BLUE)
    assert text.startswith("TPU902 call-of-blue (group shapes)\n\nA call of blue.\n\nWhat it does\n    Reports calls")
    assert "\n\nExample\n    blue(1)\n\nUse instead\n    other(1)\n\n" in text


def test_as_markdown() -> None:
    assert "### TPU902 call-of-blue\n\nA call of blue.\n\n**What it does**\n\n" in rule_docs.as_markdown(BLUE)
    assert "**Example**\n\n```python\nblue(1)\n```\n\n**Use instead**" in rule_docs.as_markdown(BLUE)


def test_the_page_has_a_table_and_the_groups() -> None:
    page = rule_docs.page([GREY, BLUE, RED])
    assert "| [TPU901](#tpu901-call-of-red) | call-of-red | values | A call of red. |\n" in page
    assert page.index("## values") < page.index("### TPU901") < page.index("## shapes") < page.index("### TPU911")


def test_the_overview_has_a_line_for_each_rule() -> None:
    lines = rule_docs.overview([GREY, RED]).splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["TPU901", "values", "call-of-red"],
        ["TPU911", "launch", "call-of-grey"],
    ]


# -- the real rules -------------------------------------------------------------------------------------------------


def test_docs_rules_is_in_step_with_the_rules() -> None:
    """`python -m tpu_magics check --write-docs docs/rules.md` updates it."""
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == rule_docs.page(ALL)


@EVERY
def test_every_rule_explains_itself(rule: Rule) -> None:
    found = rule_docs.rule_doc(rule)
    assert tuple(found.sections) == rule_docs.SECTIONS
    assert all(found.sections.values())
    assert found.title.endswith(".")
    assert found.why.endswith(".")
    assert found.group in rule_docs.GROUPS


@EVERY
@pytest.mark.parametrize("section", rule_docs.CODE)
def test_examples_are_code_of_a_cell(rule: Rule, section: str) -> None:
    cell = cell_of(rule_docs.rule_doc(rule).section(section), "In [1]")
    assert (cell.problem is not None) is ((rule, section) == (SYNTAX, "Example"))


def test_codes_and_names_are_each_of_one_rule() -> None:
    assert len({rule.code for rule in ALL}) == len({rule.name for rule in ALL}) == len(ALL)


def test_codes_of_a_group_begin_alike() -> None:
    groups = {(rule.code[:4], rule.group) for rule in ALL}
    assert len({begin for begin, _ in groups}) == len({group for _, group in groups}) == len(groups)
