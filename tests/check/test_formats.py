"""Findings as text, JSON, GitHub annotations and SARIF."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.check.own_rules import RULES, edit, finding
from tpu_magics.check.finding import Finding
from tpu_magics.check.formats import FORMATS, CheckReport, as_json, github, sarif, summary, text


def report(*findings: Finding, files: int = 3, **more: Any) -> CheckReport:
    return CheckReport(findings, files, rules=RULES, **more)


# -- text -----------------------------------------------------------------------------------------------------------


def test_text_shows_the_code_the_place_the_reason_and_the_fix() -> None:
    found = finding(2, 5, end_column=11, source="x = red(1) + 2", edits=(edit(2, 4, 7, "green"),))
    assert text(report(found)) == (
        "a.py: 1 finding\n"
        "a.py:2:5: TPU901 This is red.\n"
        "    x = red(1) + 2\n"
        "        ^^^^^^\n"
        "    why: Nobody wants red.\n"
        "    fix: Write green.\n"
        "\n"
        "1 finding in 1 of 3 files. `--fix` can fix 1.\n"
    )


def test_text_is_grouped_by_file_and_names_cells_and_advice() -> None:
    found = text(report(finding(), finding(2, advice=True), finding(path="b.ipynb", cell=3), files=2))
    assert [line for line in found.splitlines() if not line.startswith((" ", "a.py:1", "a.py:2"))] == [
        "a.py: 1 finding, 1 advice",
        "",
        "",
        "b.ipynb: 1 finding",
        "b.ipynb, cell 3, line 1: TPU901 This is red.",
        "",
        "2 findings, 1 advice in 2 of 2 files.",
    ]
    assert "a.py:2:1: TPU901 (advice) This is red." in found


def caret(source: str, column: int, end_column: int, end_line: int = 1) -> tuple[str, str]:
    found = finding(1, column, end_column=end_column, end_line=end_line, source=source)
    lines = text(report(found)).splitlines()
    return lines[2], lines[3]


@pytest.mark.parametrize(
    ("source", "column", "end_column", "code", "marks"),
    [
        ("        red(1)", 9, 15, "    red(1)", "    ^^^^^^"),
        ("\tred(1)", 2, 8, "    red(1)", "    ^^^^^^"),
        ("a\tred(1)", 3, 9, "    a red(1)", "      ^^^^^^"),
        ("'日本', red(1)", 7, 13, "    '日本', red(1)", "            ^^^^^^"),
        ("x = '日本'", 5, 9, "    x = '日本'", "        ^^^^^^"),
        ("red(1)", 1, 1, "    red(1)", "    ^"),
        ("red(1)", 99, 120, "    red(1)", "          ^"),
        ("red(1)", 1, 400, "    red(1)", "    ^^^^^^"),
        ("x = 'a\033[31m' + red(1)", 16, 22, "    x = 'a\ufffd[31m' + red(1)", "                   ^^^^^^"),
    ],
)
def test_the_marks_stand_under_the_place(source: str, column: int, end_column: int, code: str, marks: str) -> None:
    assert caret(source, column, end_column) == (code, marks)


def test_of_several_lines_the_first_is_marked_to_its_end() -> None:
    assert caret("x = red(  ", 5, 2, end_line=3) == ("    x = red(", "        ^^^^")


def test_of_a_long_line_the_part_around_the_place_is_shown() -> None:
    source = "    x = [" + "a, " * 200 + "red(1)]" + ", b" * 200
    code, marks = caret(source, source.index("red") + 1, source.index("red") + 7)
    start = len(marks) - len(marks.lstrip())
    assert code[start:].startswith("red(1)]")
    assert marks.strip() == "^" * 6
    assert len(code) <= 120


def test_colours_are_only_added() -> None:
    plain, coloured = text(report(finding())), text(report(finding()), colour=True)
    assert "\033[" not in plain
    for mark in ("31", "1", "36", "0"):
        coloured = coloured.replace(f"\033[{mark}m", "")
    assert coloured == plain


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (report(), "No findings in 3 files."),
        (report(files=1), "No findings in 1 file."),
        (report(files=0), "No Python files or notebooks found."),
        (report(fixed=2), "2 findings fixed. No findings in 3 files."),
        (report(finding(), fixed=1), "1 finding fixed. 1 finding in 1 of 3 files."),
        (report(finding(advice=True), files=1), "1 advice in 1 of 1 file."),
    ],
)
def test_the_last_line_counts(found: CheckReport, said: str) -> None:
    assert summary(found) == said


def test_words_that_would_move_the_cursor_are_not_printed() -> None:
    shown = text(report(finding(message="This is \033[2J\r\nred.", path="a\n.py")))
    assert "\033" not in shown
    assert "\r" not in shown
    assert "a\ufffd.py:1:1: TPU901 This is \ufffd[2J\ufffd\ufffdred." in shown


# -- json -----------------------------------------------------------------------------------------------------------


def test_json_is_a_list_of_objects() -> None:
    found = json.loads(as_json(report(finding(2, 3, cell=4, edits=(edit(2, 2, 5, "x"),)), finding(advice=True))))
    wanted = {
        "code": "TPU901", "group": "values", "path": "a.py", "cell": 4, "line": 2, "column": 3,
        "message": "This is red.", "why": "Nobody wants red.", "fix": "Write green.",
    }  # fmt: skip
    assert {key: found[0][key] for key in wanted} == wanted
    assert [one["fixable"] for one in found] == [True, False]
    assert [one["advice"] for one in found] == [False, True]
    assert as_json(report()) == "[]\n"


# -- GitHub ---------------------------------------------------------------------------------------------------------


def test_github_annotations() -> None:
    assert github(report(finding(2, 5))) == (
        "::error file=a.py,line=2,endLine=2,col=5,title=TPU901::This is red. Nobody wants red. Fix: Write green.\n"
    )
    assert github(report(finding(advice=True))).startswith("::notice file=a.py,")


def test_github_escapes() -> None:
    (line,) = github(report(finding(path="a:b,c%.py", message="100%:\r\nred, really."))).splitlines()
    assert "file=a%3Ab%2Cc%25.py,line" in line
    assert "::100%25:%0D%0Ared, really. Nobody" in line


def test_github_names_the_cell_and_the_line_of_the_file() -> None:
    found = github(report(finding(2, 5, path="a.ipynb", cell=3), file_lines=lambda _: 77))
    assert found.startswith("::error file=a.ipynb,line=77,title=TPU901::Cell 3, line 2: This is red.")


# -- SARIF ----------------------------------------------------------------------------------------------------------


def test_sarif_has_what_the_schema_requires() -> None:
    found = json.loads(sarif(report(finding(2, 5), finding(code="TPU902", advice=True), version="1.2.3")))
    assert found["version"] == "2.1.0"
    (run,) = found["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("tpu_magics", "1.2.3")
    assert [rule["id"] for rule in driver["rules"]] == ["TPU901", "TPU902", "TPU911"]
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert "What it does" in rule["help"]["text"]
        assert rule["help"]["markdown"].startswith("### TPU9")
    first, second = run["results"]
    assert (first["level"], second["level"]) == ("error", "note")
    assert driver["rules"][second["ruleIndex"]]["id"] == second["ruleId"] == "TPU902"
    assert first["message"]["text"].startswith("This is red.")
    (location,) = first["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "a.py"
    assert location["physicalLocation"]["region"] == {"startLine": 2, "startColumn": 5, "endLine": 2, "endColumn": 6}
    assert "logicalLocations" not in location


def test_sarif_of_a_notebook_has_the_cell() -> None:
    found = json.loads(sarif(report(finding(2, 5, path="a.ipynb", cell=3), file_lines=lambda _: 77)))
    (location,) = found["runs"][0]["results"][0]["locations"]
    assert location["physicalLocation"]["region"] == {"startLine": 77}
    (logical,) = location["logicalLocations"]
    assert (logical["name"], logical["fullyQualifiedName"]) == ("cell 3", "a.ipynb, cell 3, line 2")


def test_sarif_has_the_fixes() -> None:
    found = json.loads(sarif(report(finding(edits=(edit(1, 4, 7, "green"),)))))
    (fix,) = found["runs"][0]["results"][0]["fixes"]
    (replacement,) = fix["artifactChanges"][0]["replacements"]
    assert replacement["deletedRegion"] == {"startLine": 1, "startColumn": 5, "endLine": 1, "endColumn": 8}
    assert replacement["insertedContent"] == {"text": "green"}


@pytest.mark.parametrize(
    ("path", "uri"),
    [("a b/c#.py", "a%20b/c%23.py"), ("/x/a.py", "file:///x/a.py"), ("./a.py", "a.py"), ("é.py", "%C3%A9.py")],
)
def test_sarif_paths_are_uris(path: str, uri: str) -> None:
    found = json.loads(sarif(report(finding(path=path))))
    location = found["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": uri}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_shows_nothing_and_odd_characters(name: str) -> None:
    assert FORMATS[name](report()) is not None
    odd = finding(path="\udcff.py", source="x = '\ud800'", message="\ud800 is red.")
    assert FORMATS[name](report(odd, odd))
