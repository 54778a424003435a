"""The diagnosis as text, HTML and JSON."""

from __future__ import annotations

import json
from html import escape

import pytest

from tests.host import doctor_host, fake_hosts
from tests.panel.parsed import Parsed
from tpu_magics.host.doctor import Check, apply_fixes, examine
from tpu_magics.panel.doctor import Diagnosis, to_html, to_json, to_text


@pytest.fixture
def host(tmp_path):
    host = fake_hosts.kaggle_v5e_8(tmp_path)
    host.environ["PJRT_DEVICE"] = "CUDA"
    return host


@pytest.fixture
def ill(host):
    return Diagnosis(examine(doctor_host.facts(host, runtime=True)))


def test_what_is_broken_stands_first_with_its_command(ill):
    first, rest = to_text(ill).split("\n\ntpu_magics: ")
    heads = [line for line in first.split("\n") if line.startswith(("✗", "!"))]
    assert heads == [
        "✗ broken: TPU in use by, This notebook's runtime",
        "✗ broken: Environment variables, PJRT_DEVICE",
        "! warning: Environment variables, Worker addresses",
    ]
    assert first.startswith("To fix\n\n")
    assert "\n  Fix (--fix):\n      %env PJRT_DEVICE=TPU\n  Then run %tpu_init again\n" in first
    assert "\n  Fix: restart the kernel, run %tpu_init first" in first
    assert first.endswith("\n\n%tpu_doctor --fix applies the fixes marked (--fix).")
    assert rest.startswith("24 checks: 2 broken, 1 warning, ")


def test_a_long_command_stays_one_line_to_be_copied(ill):
    [check] = [check for check in ill.checks if check.name == "Worker addresses"]
    assert len(check.command) > 80
    assert f"\n      {check.command}\n" in to_text(ill)


def test_all_checks_follow_by_group(ill):
    text = to_text(ill)
    places = [text.index(f"\n\n{group}\n") for group in dict.fromkeys(check.group for check in ill.checks)]
    assert places == sorted(places) and len(places) == 11
    commands = {check.command for check in ill.checks}
    assert max(len(line) for line in text.split("\n") if line.strip() not in commands) <= 100


def test_in_a_shell_commands_are_a_shells(ill):
    told = Diagnosis(ill.checks, shell=True)
    text = to_text(told)
    assert "Fix:\n      export PJRT_DEVICE=TPU\n  Then" in text
    assert "unset TPU_PROCESS_ADDRESSES CLOUD_TPU_TASK_ID" in text
    assert "%env" not in text and "os.environ" not in text and "(--fix)" not in text


def test_commands_name_the_interpreter_where_a_shell_would_find_another(tmp_path):
    versions = {"psutil": None, "tensorflow": "2.20.0"}
    checks = examine(doctor_host.facts(fake_hosts.plain(tmp_path), versions=versions))
    assert "\n      /v/python -m pip install psutil\n" in to_text(Diagnosis(checks, shell=True, python="/v/python"))
    in_notebook = to_text(Diagnosis(checks, python="/v/python"))
    assert "!/v/python -m pip uninstall" in in_notebook and "%pip install psutil" in in_notebook


def test_a_huge_variable_does_not_flood_the_page(tmp_path):
    host = fake_hosts.plain(tmp_path)
    host.environ["XLA_FLAGS"] = "--xla_dump_to=/" + 100_000 * "a"
    told = Diagnosis(examine(doctor_host.facts(host)))
    assert "XLA_FLAGS=--xla_dump_to=/aaa" in to_text(told) and len(to_text(told)) < 10_000
    assert len(to_html(told)) < 50_000


def test_a_variable_that_is_no_text_is_told_in_json_as_well(tmp_path):
    host = fake_hosts.plain(tmp_path)
    host.environ["XLA_FLAGS"] = "--xla_dump_to=/\udcff"
    text = to_json(Diagnosis(examine(doctor_host.facts(host))))
    told = [one["what"] for one in json.loads(text.encode("ascii"))["checks"] if one["name"] == "XLA_FLAGS"]
    assert told == ["XLA_FLAGS=--xla_dump_to=/� writes every compiled program to disk."]


def test_what_fix_did_and_left(host, ill):
    mended = apply_fixes(ill.checks, host.environ, host.root)
    again = Diagnosis(examine(doctor_host.facts(host, runtime=True)), mended.done, mended.left, fixed=True)
    text = " ".join(to_text(again).split())
    assert text.startswith("Done by --fix PJRT_DEVICE=TPU was set (before: 'CUDA'), in this session. TPU_PROCESS_ADD")
    assert "Not fixed by --fix ✗ broken: TPU in use by, This notebook's runtime" in text
    assert [check.name for check in again.broken] == ["This notebook's runtime"]


def test_a_fix_with_nothing_to_do(tmp_path):
    healthy = Diagnosis(examine(doctor_host.facts(fake_hosts.plain(tmp_path))), fixed=True)
    assert to_text(healthy).startswith("Done by --fix\n  Nothing: no problem has a fix")
    assert "To fix" not in to_text(healthy) and "Not fixed by --fix" not in to_text(healthy)


def test_the_html_is_whole_and_has_the_same_words(ill):
    html = to_html(ill)
    parsed = Parsed(html)
    assert not {"script", "style", "link", "img"} & set(parsed.tags)
    cells = " ".join(parsed.cells)
    assert all(check.what in cells for check in ill.checks)
    assert all(escape(check.command) in html for check in ill.problems)
    assert "<details><summary" in html, "folded away: what is to be mended stands above it"


def test_a_healthy_host_shows_all_its_checks(tmp_path):
    html = to_html(Diagnosis(examine(doctor_host.facts(fake_hosts.plain(tmp_path)))))
    assert "<details open><summary" in html and "To fix" not in html


def test_what_a_person_wrote_is_escaped():
    check = Check("g", "<b>n</b>", "broken", "<script>alert(1)</script>", "\x1b[31mred", '!echo "<x>"')
    html, text = to_html(Diagnosis((check,))), to_text(Diagnosis((check,)))
    assert "<script>" not in html and "<b>n" not in html and "<x>" not in html
    assert "\x1b" not in html and "\x1b" not in text


def test_json(ill):
    told = json.loads(to_json(ill))
    assert told["schema"] == 1
    assert list(told["counts"]) == ["broken", "warning", "not available", "ok"]
    assert sum(told["counts"].values()) == len(told["checks"]) == len(ill.checks)
    by_name = {each["name"]: each for each in told["checks"]}
    assert by_name["PJRT_DEVICE"] == {
        "group": "Environment variables",
        "name": "PJRT_DEVICE",
        "state": "broken",
        "what": "PJRT_DEVICE=CUDA is wrong for this host, which has 8 TPU chips. It was not changed.",
        "why": "It was set in this notebook or before the notebook started. The XLA runtime would fail to start.",
        "command": "%env PJRT_DEVICE=TPU",
        "then": "run %tpu_init again",
        "fixable": True,
    }
    assert by_name["This notebook's runtime"]["fixable"] is False


def test_json_of_what_was_left(ill):
    left = Diagnosis(ill.checks, ("one",), ((ill.checks[0], "because"),), fixed=True)
    told = json.loads(to_json(left))
    assert told["done"] == ["one"] and told["left"][0]["reason"] == "because"


def test_it_shows_itself(ill):
    assert str(ill) == to_text(ill)
    assert set(ill._repr_mimebundle_(include=None, exclude=None)) == {"text/plain", "text/html"}
