"""Every rule on its samples: all expected findings, and no others."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.check import expectations
from tpu_magics.check import check_cells, rules
from tpu_magics.check.fixes import fix
from tpu_magics.check.inference.library_results import REMOVED
from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import RULES
from tpu_magics.check.rules.migrate import COUNTERPARTS

ENOUGH = 8  # lines that must be found, and lines that must not, for each rule


def rules_of(path: Path) -> list[Rule]:
    """A sample of a rule that is opt-in is for this rule alone."""
    opt_in = [rule for rule in RULES if rule.opt_in and path.name.startswith(rule.code.lower())]
    return opt_in or [rule for rule in RULES if not rule.opt_in]


@pytest.mark.parametrize("path", expectations.files(), ids=lambda path: path.name)
def test_a_sample_has_its_expected_findings_and_no_others(path: Path) -> None:
    cells = expectations.cells_of(path)
    said = list(expectations.expected(cells))
    findings = check_cells(cells, rules_of(path))
    found = {(one.cell, one.line, one.code): one for one in findings}
    wanted = {(one.cell, one.line, one.code) for one in said}
    missed = [f"{key}: not found" for key in sorted(wanted - set(found), key=str)]
    false = [f"{key}: {found[key].message}" for key in sorted(set(found) - wanted, key=str)]
    assert not missed + false, "\n".join([str(path), *missed, *false])
    for one in said:
        message = found[one.cell, one.line, one.code].message
        assert one.part in message, f"{path.name}:{one.line} says {message!r}, not {one.part!r}"
    for finding in findings:  # what, why, how to fix it, and where
        assert finding.message.endswith((".", "?")) and finding.why.endswith(".") and finding.fix.endswith("."), finding
        assert finding.line >= 1 and finding.column >= 1
        assert (finding.end_line, finding.end_column) >= (finding.line, finding.column), finding


@pytest.mark.parametrize("path", expectations.files(), ids=lambda path: path.name)
def test_a_sample_that_was_fixed_parses_and_has_nothing_left_to_fix(path: Path) -> None:
    check = partial(check_cells, rules=rules_of(path))
    fixed = fix(expectations.cells_of(path), check, unsafe=True).cells
    assert all(cell.tree is not None for cell in fixed)
    assert not fix(fixed, check, unsafe=True).changes
    assert not [one for one in check(fixed) if one.edits]


def test_each_rule_has_lines_that_must_be_found_and_lines_that_must_not() -> None:
    found: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    for path in expectations.files():
        cells = expectations.cells_of(path)
        found.update(one.code for one in expectations.expected(cells))
        silent.update(code for _, _, code in expectations.silent(cells))
    codes = [rule.code for rule in RULES]
    assert [code for code in codes if found[code] < ENOUGH] == [], "too few lines that must be found"
    assert [code for code in codes if silent[code] < ENOUGH] == [], "too few lines that must not be found"


def test_no_fix_for_torch_tpu_names_a_function_of_torch_xla() -> None:
    findings = check_cells(expectations.cells_of(expectations.FOLDER / "real_torch_tpu.py"))
    assert findings and not [one.fix for one in findings if re.search(r"\bxm\.|\bxr\.|torch_xla", one.fix)]


def test_names_that_have_a_counterpart_are_torch_xla_s() -> None:
    """But for those that torch_xla has removed: old notebooks have them."""
    pytest.importorskip("torch_xla")
    for name in COUNTERPARTS.keys() - REMOVED.keys():
        module, _, attribute = name.rpartition(".")
        found = importlib.import_module(module)
        assert not attribute or hasattr(found, attribute), name


def test_every_rule_is_listed() -> None:
    codes = [rule.code for rule in RULES]
    assert codes == sorted(codes)
    assert {type(rule) for rule in RULES} == {
        one for one in Rule.__subclasses__() if one.__module__.startswith(rules.__name__)
    }
    for rule in RULES:
        name = type(rule).__name__
        assert name.lower() == rule.name.replace("-", ""), name
        assert rule.group == GROUPS[rule.code[3]], name


GROUPS = {
    "1": "values", "2": "shapes", "3": "recompiles", "4": "launch", "5": "precision", "6": "trainer", "7": "tensorflow",
    "8": "migrate",
}  # fmt: skip
