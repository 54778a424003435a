"""Findings as text and HTML: escaped, marked, folded."""

from __future__ import annotations

from dataclasses import replace

from tests.panel.parsed import Parsed
from tpu_magics.check.finding import Finding
from tpu_magics.panel.findings import MOST, codes, finding_view, findings_html, findings_text, headline

ONE = Finding(
    "TPU101", "values", "In [3]", None, 4, 8, 4, 18, "The branch depends on the value of `<b>`.", "Why & how.",
    "Write torch.where.", "    if x.sum() > 0:  # <script>",
)  # fmt: skip
ADVICE = Finding("TPU702", "tensorflow", "a.ipynb", 2, 1, 1, 1, 5, "Said.", "Because.", "Do.", "fit()", advice=True)


def test_a_finding_shows_its_line_with_the_place_marked_and_everything_escaped() -> None:
    html = findings_html([ONE], "3 cells")
    Parsed(html)
    assert "1 broken rule in 3 cells." in html and "In [3], line 4" in html
    assert "&lt;script&gt;" in html and "<script" not in html and "&lt;b&gt;" in html
    assert ">x.sum() &gt;" in html, "what it is about is marked"
    assert "Why &amp; how." in html and "Write torch.where." in html
    assert "<code" in html and "`" not in html, "what stands between backticks is shown as code"


def test_text_and_html_say_the_same() -> None:
    plain = findings_text([ONE, ADVICE], "3 cells")
    assert plain.startswith("1 broken rule and 1 advice in 3 cells.")
    for part in (ONE.message, ONE.why, ONE.fix, "In [3], line 4", "a.ipynb, cell 2, line 1"):
        assert part in plain


def test_each_rule_can_be_read_below_once() -> None:
    found = [replace(ONE, code=code, message=str(number)) for number, code in enumerate(("TPU201", "TPU001", "TPU201"))]
    html = findings_html(found, "2 cells")
    assert html.count("About TPU201 boolean mask index") == html.count("About TPU001 does not parse") == 1
    assert "loss = F.cross_entropy(out, torch.where(keep, labels, -100))" in html and "Use instead" in html
    assert "<details" not in findings_html([replace(ONE, code="TPU999")], "2 cells"), "a rule of another version"


def test_nothing_found_is_said() -> None:
    assert "No broken rule in 3 cells." in findings_html([], "3 cells")
    assert findings_text([], "3 cells") == "No broken rule in 3 cells."


def test_many_findings_are_counted_not_all_shown() -> None:
    html = findings_html([ONE] * (MOST + 5), "3 cells")
    assert html.count("In [3], line 4") == MOST and "5 more are not shown." in html
    assert "5 more are not shown." in findings_text([ONE] * (MOST + 5), "3 cells")


def test_words_count_rules_and_advice() -> None:
    found = [finding_view(ONE), finding_view(ONE), finding_view(ADVICE)]
    assert headline(found) == "2 broken rules and 1 advice" and codes(found) == "TPU101 (2), TPU702"
