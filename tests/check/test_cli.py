"""`python -m tpu_magics check`: from files to a report and an exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.check.own_rules import RULES, rule, write_notebook
from tpu_magics.__main__ import main as whole
from tpu_magics.check import cli

ROOT = Path(__file__).parents[2]
BAD = "import torch\nred(1)\nblue(2)\n"
REAL = """\
import torch
import torch_xla

def train(model, loader, optimizer):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        if loss > 3:
            optimizer.zero_grad()
        optimizer.step()
        torch_xla.sync()

device = torch_xla.device()
train(torch.nn.Linear(2, 1).to(device), [torch.ones(2, device=device)], None)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def check(*argv: str) -> int:
    return cli.main(argv, RULES)


def found(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    check("--format", "json", *argv)
    records: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return records


@pytest.mark.parametrize("name", ["pipe.py", "pipe.ipynb"])
def test_a_pipe_is_named_and_not_waited_for(capsys: pytest.CaptureFixture[str], name: str) -> None:
    os.mkfifo(name)
    write("good.py", "")
    assert check(name, "good.py") == 2
    assert f"{name}: it is a named pipe, not a file" in capsys.readouterr().err
    assert check("--baseline", name, "good.py") == 2
    assert f"The baseline {name} cannot be read" in capsys.readouterr().err


# -- what is found, and the exit code -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1\n", 0),
        (BAD, 1),
        ("import torch\ngrey(1)\n", 0),
        ("print 1\n", 1),
        ("", 0),
        ("import torch\nred(1)  # noqa\n", 0),
    ],
)
def test_exit_codes(text: str, code: int) -> None:
    """Advice fails no check."""
    write("a.py", text)
    assert check("a.py") == code
    assert check("--exit-zero", ".") == 0


def test_a_path_that_is_not_there_is_2_and_the_rest_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", BAD)
    assert check("nowhere.py", "a.py") == 2
    shown = capsys.readouterr()
    assert shown.err == "nowhere.py: no such file or folder\n"
    assert "a.py:2:1: TPU901" in shown.out
    assert check("--exit-zero", "nowhere.py") == 2


def test_a_file_that_cannot_be_read_is_2_and_the_rest_is_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.py", BAD)
    write("b.py", BAD)
    read = cli.read_regular

    def refused(path: str) -> bytes:
        if Path(path).name == "a.py":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(cli, "read_regular", refused)
    assert check() == 2
    shown = capsys.readouterr()
    assert shown.err == "a.py: Permission denied\n"
    assert "b.py:2:1: TPU901" in shown.out


def test_an_error_in_a_rule_is_reported_and_the_rest_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(*_: Any) -> Any:
        raise RuntimeError("broken")

    broken = rule("TPU999", "broken", "values", "x")
    broken.check = breaks  # type: ignore[attr-defined]
    write("a.py", BAD)
    write("b.py", "print 1\n")
    assert cli.main(["."], [broken, *RULES]) == 2
    shown = capsys.readouterr()
    assert "The rule TPU999 (broken) failed with RuntimeError: broken. Please report this." in shown.err
    assert shown.err.count("TPU999") == 1
    assert "a.py:2:1: TPU901" in shown.out and "b.py:1:1: TPU001" in shown.out


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--select", "TPU777"], "--select: no rule matches 'TPU777'"),
        (["--ignore", "values,E501"], "--ignore: no rule matches 'E501'"),
        (["--explain", "TPU777"], "There is no rule 'TPU777'"),
        (["-", "a.py"], "cannot be checked together with files"),
        (["--stdin-filename", "a.py", "b.py"], "works with - only"),
    ],
)
def test_wrong_usage_is_2(argv: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(*argv) == 2
    shown = capsys.readouterr()
    assert part in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("argv", [["--format", "xml"], ["--nonsense"]])
def test_options_that_do_not_exist_are_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        check(*argv)
    assert caught.value.code == 2


def test_a_wrong_table_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    write("pyproject.toml", "[tool.tpu_magics]\nselects = []\n")
    write("a.py", BAD)
    assert check("a.py") == 2
    assert "unknown key: selects" in capsys.readouterr().err


def test_a_broken_cell_is_reported_and_the_others_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    write_notebook(Path("a.ipynb"), "import torch", "print 1", "!ls\nred(1)", "%%bash\nred(1)")
    records = found(capsys)
    assert [(one["code"], one["cell"], one["line"]) for one in records] == [("TPU001", 2, 1), ("TPU901", 3, 2)]


def test_a_notebook_of_another_kernel_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.ipynb", json.dumps({"cells": [], "metadata": {"kernelspec": {"language": "julia"}}}))
    assert check("a.ipynb") == 0
    assert capsys.readouterr().err == "a.ipynb: not checked, because it is a notebook in julia\n"


def test_rules_are_chosen_by_options_tables_and_comments(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", BAD + "red(3)  # noqa: TPU901\ngrey(4)\n")
    write("old/b.py", BAD)
    assert [one["code"] for one in found(capsys, "a.py")] == ["TPU901", "TPU902"]
    assert [one["code"] for one in found(capsys, "--advice", "a.py")] == ["TPU901", "TPU902", "TPU911"]
    assert [one["code"] for one in found(capsys, "--advice", "--select", "values,TPU91", "a.py")] == [
        "TPU901",
        "TPU911",
    ]
    check("a.py")
    assert capsys.readouterr().out.endswith(" 1 advice not shown (`--advice`).\n")
    assert [one["code"] for one in found(capsys, "--ignore", "values", "--ignore", "TPU911", "a.py")] == ["TPU902"]
    write("pyproject.toml", "[tool.tpu_magics]\nselect = ['call-of-blue']\nexclude = ['old']\n")
    assert [(one["path"], one["code"]) for one in found(capsys)] == [("a.py", "TPU902")]
    assert [one["code"] for one in found(capsys, "--select", "values")] == ["TPU901"]


def test_a_rule_that_is_opt_in_is_used_where_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", "import torch\nimport torch_xla\n\nmodel.to(torch_xla.device())\ntorch_xla.sync()\n")
    assert [cli.main(words) for words in (["a.py"], ["--select", "all", "a.py"], ["--select", "TPU1", "a.py"])] == [
        0
    ] * 3
    write("noqa.py", "import torch_xla  # noqa: TPU801\n")
    assert cli.main(["--migrate", "noqa.py"]) == 0
    capsys.readouterr()
    assert cli.main(["--advice", "noqa.py"]) == 0
    assert capsys.readouterr().out == "No findings in 1 file.\n", "nobody asked whether the comment is used"
    assert cli.main(["--migrate", "--statistics", "a.py"]) == 1
    assert capsys.readouterr().out.startswith("3  TPU801 ")
    assert cli.main(["--migrate", "--fix", "a.py"]) == 1
    assert 'model.to(torch.device("tpu"))' in Path("a.py").read_text()
    write("pyproject.toml", "[tool.tpu_magics]\nselect = ['migrate']\n")
    assert cli.main(["a.py"]) == 1


def test_json_has_the_fields_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", BAD)
    for record in found(capsys):
        assert {"code", "group", "path", "cell", "line", "column", "message", "why", "fix"} <= record.keys()


def test_github_and_sarif_point_at_the_line_of_the_notebook_s_file(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_notebook(Path("a.ipynb"), "import torch\n", ["x = 1\n", "\n", "red(1)\n", "y = 2"], [], "red(2)")
    lines = path.read_text().splitlines()
    wanted = [lines.index('    "red(1)\\n",') + 1, lines.index('   "source": "red(2)"') + 1]
    assert check("--format", "github") == 1
    said = capsys.readouterr().out.splitlines()
    assert [one.partition(",title")[0] for one in said] == [f"::error file=a.ipynb,line={line}" for line in wanted]
    check("--format", "sarif")
    results = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    regions = [result["locations"][0]["physicalLocation"]["region"] for result in results]
    assert regions == [{"startLine": line} for line in wanted]


def test_colours_only_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.py", BAD)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    check("a.py")
    assert "\033[" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    check("a.py")
    assert "\033[31m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    check("a.py")
    assert "\033[" not in capsys.readouterr().out


def test_output_that_the_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.py", "import torch\nred('日本')\n")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert check("a.py") == 1
    out.seek(0)
    assert "red('\\u65e5\\u672c')" in out.read()


# -- fixes --------------------------------------------------------------------------------------------------------


def test_fix_writes_and_tells_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", BAD)
    path = write_notebook(Path("b.ipynb"), ["import torch\n", "red(1)  # noqa\n", "red(2)"])
    write("c.py", "import torch\ngreen(1)\n")
    before = path.read_text()
    assert check("--fix") == 1
    shown = capsys.readouterr().out
    assert Path("a.py").read_text() == BAD.replace("red", "green")
    assert path.read_text() == before.replace('"red(2)"', '"green(2)"')
    assert "a.py:3:1: TPU902" in shown
    assert "TPU901" not in shown
    assert shown.endswith("2 findings fixed. 1 finding in 1 of 3 files.\n")
    times = [Path(name).stat().st_mtime_ns for name in ("a.py", "b.ipynb", "c.py")]
    assert check("--fix") == 1
    assert [Path(name).stat().st_mtime_ns for name in ("a.py", "b.ipynb", "c.py")] == times


PADS = """import torch
import torch_xla
from transformers import AutoTokenizer


def tokenize(batch):
    return tokenizer(batch["text"], padding=True)


def train(model, loader):
    for batch in loader:
        model(**batch).loss.backward()
        torch_xla.sync()


tokenizer = AutoTokenizer.from_pretrained("x")
"""


def test_a_fix_that_may_change_results_needs_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("pads.py")
    path.write_text(PADS, encoding="utf-8")
    assert cli.main(["--fix", "pads.py"]) == 1 and path.read_text(encoding="utf-8") == PADS
    said = capsys.readouterr().out
    assert "`--fix --unsafe-fixes` can fix 1 more, which may change results." in said and "`--fix` can" not in said
    assert cli.main(["--fix", "--unsafe-fixes", "pads.py"]) == 0
    assert "pad_to_multiple_of=64" in path.read_text(encoding="utf-8")


def test_unsafe_fixes_alone_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--unsafe-fixes", ".") == 2
    assert "--fix or --diff" in capsys.readouterr().err


def test_fix_leaves_what_is_not_chosen() -> None:
    write("a.py", BAD + "grey(1)\n")
    assert check("--fix", "--ignore", "values") == 1
    assert Path("a.py").read_text() == BAD + "gray(1)\n"


def test_diff_shows_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", BAD)
    write("b.py", "import torch\nblue(1)\n")
    assert check("--diff", "--fix", ".") == 1
    assert capsys.readouterr().out == (
        "--- a.py\n+++ a.py\n@@ -1,3 +1,3 @@\n import torch\n-red(1)\n+green(1)\n blue(2)\n"
    )
    assert Path("a.py").read_text() == BAD
    assert check("--diff", "b.py") == 0
    assert check("--diff", "--exit-zero", "a.py") == 0


def test_a_file_that_cannot_be_written_is_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.py", BAD)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert check("--fix") == 2
    shown = capsys.readouterr()
    assert "a.py was not changed" in shown.err
    assert "2 findings in 1 of 1 file" in shown.out
    assert Path("a.py").read_text() == BAD


# -- standard input -------------------------------------------------------------------------------------------------


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize(
    ("argv", "path"),
    [(["-"], "<stdin>"), (["--stdin-filename", "x.py", "-"], "x.py"), (["--stdin-filename", "x.py"], "x.py")],
)
def test_standard_input(
    argv: list[str], path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(BAD.encode()))
    assert {one["path"] for one in found(capsys, *argv)} == {path}


@pytest.mark.parametrize("name", ["x.py", "x.ipynb"])
def test_standard_input_is_fixed_to_standard_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write("x.py", "import torch\r\nred('é')\r\n")
    write_notebook(Path("x.ipynb"), ["import torch\n", "red('é')\n"])
    data = Path(name).read_bytes()
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    monkeypatch.setattr(sys, "stdout", out)
    assert check("--fix", "--stdin-filename", name, "-") == 0
    out.seek(0)
    assert out.buffer.read() == data.replace("red('é".encode(), "green('é".encode())


# -- the real command -----------------------------------------------------------------------------------------------


def shell(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tpu_magics", *argv], capture_output=True, text=True, **options)


@pytest.mark.process
def test_the_command_with_the_real_rules() -> None:
    write("a.py", REAL)
    done = shell("check", "a.py")
    assert done.returncode == 1, done.stderr
    assert "a.py:8:12: TPU101" in done.stdout
    assert done.stderr == ""
    assert shell("check", "--ignore", "all", "a.py").returncode == 0
    assert shell("check", "nowhere.py").returncode == 2
    assert shell("check", "--format", "xml").returncode == 2


def test_rules_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert whole(["check", "--list-rules"]) == 0
    assert "TPU101  values" in capsys.readouterr().out
    for word in ("TPU101", "tpu101", "branch-on-value"):
        assert whole(["check", "--explain", word]) == 0
        assert capsys.readouterr().out.startswith("TPU101 branch-on-value (group values)\n")
    assert whole(["check", "--explain", "TPU001"]) == 0
    assert "does-not-parse" in capsys.readouterr().out


def test_write_docs(tmp_path: Path) -> None:
    assert check("--write-docs", "rules.md") == 0
    assert "### TPU901 call-of-red" in (tmp_path / "rules.md").read_text(encoding="utf-8")


@pytest.mark.process
def test_checking_imports_nothing_but_the_standard_library() -> None:
    write("a.py", REAL)
    code = (
        "import sys; before = set(sys.modules); from tpu_magics.check import cli; cli.main(['a.py']);"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(new - sys.stdlib_module_names, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.getcwd())
    assert done.stderr == "{'tpu_magics'}\n"


# -- pre-commit -----------------------------------------------------------------------------------------------------


# -- as users of ruff expect --------------------------------------------------------------------------------------


def test_statistics_count_each_rule(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", BAD + "red(3)\n")
    assert check("--statistics") == 1
    assert capsys.readouterr().out.splitlines() == [
        "2  TPU901  [*]  call-of-red",
        "1  TPU902  [ ]  call-of-blue",
        "3 findings in 1 of 1 file. `--fix` can fix 2.",
    ]
    check("--statistics", "--format", "json")
    assert [(one["code"], one["count"], one["fixable"]) for one in json.loads(capsys.readouterr().out)] == [
        ("TPU901", 2, 2),
        ("TPU902", 1, 0),
    ]
    assert check("--statistics", "--format", "sarif") == 2


def test_exclude_adds_to_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    write("pyproject.toml", "[tool.tpu_magics]\nexclude = ['old']\n")
    for name in ("a.py", "old/b.py", "gen/c.py", "x/d_pb2.py"):
        write(name, BAD)
    assert {one["path"] for one in found(capsys, "--exclude", "gen,*_pb2.py")} == {"a.py"}
    assert {one["path"] for one in found(capsys, "--exclude", "gen", "--exclude", "x/*")} == {"a.py"}


def test_advice_is_shown_where_its_rule_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", "import torch\ngrey(1)\n")
    for chosen in ([], ["--select", "launch"], ["--select", "all"]):
        assert found(capsys, *chosen) == []
    for chosen in (["--advice"], ["--select", "TPU911"], ["--select", "call-of-grey"]):
        assert [one["code"] for one in found(capsys, *chosen)] == ["TPU911"]


def test_a_baseline_leaves_out_what_was_there(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", BAD)
    assert check("--write-baseline", "base.json") == 0
    assert "2 findings listed in base.json." in capsys.readouterr().out
    assert check("--baseline", "base.json") == 0
    assert "2 more in the baseline." in capsys.readouterr().out
    write("a.py", "# moved\n\n" + BAD.replace("red(1)", "  red(1)  ".strip()) + "red(1)\nblue(3)\n")
    left = found(capsys, "--baseline", "base.json")
    assert [(one["code"], one["line"]) for one in left] == [("TPU901", 6), ("TPU902", 7)], "one more of the same kind"
    assert "a.py" in Path("base.json").read_text() and "red" not in Path("base.json").read_text()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"findings": 3}', '{"findings": {"a": "b"}}', "[" * 100_000])
def test_what_is_no_baseline_is_an_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("base.json", text)
    write("a.py", BAD)
    assert check("--baseline", "base.json") == 2
    assert "base.json" in capsys.readouterr().err
    assert check("--baseline", "nowhere.json") == 2


def test_the_report_goes_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", BAD)
    for kind in ("text", "json", "sarif", "github"):
        assert check("--format", kind, "--output-file", "out.txt") == 1
        assert capsys.readouterr().out == ""
        assert "TPU901" in Path("out.txt").read_text()
    assert check("--output-file", "nowhere/out.txt") == 2
    assert "nowhere/out.txt was not written" in capsys.readouterr().err


def test_noqa_is_added_to_what_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", 'import torch\nred(1)\nx = red(\n    """a\n    b""",\n    blue(2),\n)\nblue(3)  # noqa: E501, why\n')
    path = write_notebook(Path("b.ipynb"), ["import torch\n", "red(1)\n", "blue(3)"])
    assert check("--add-noqa") == 0
    assert "given a comment" in capsys.readouterr().out
    assert Path("a.py").read_text().splitlines() == [
        "import torch",
        "red(1)  # noqa: TPU901",
        "x = red(",
        '    """a',
        '    b""",',
        "    blue(2),",
        ")  # noqa: TPU901, TPU902",
        "blue(3)  # noqa: E501, TPU902, why",
    ]
    assert '"red(1)  # noqa: TPU901\\n"' in path.read_text()
    before = Path("a.py").read_bytes(), path.read_bytes()
    assert check("--add-noqa") == 0 and (Path("a.py").read_bytes(), path.read_bytes()) == before
    assert check("--add-noqa", "--fix") == 2


def test_a_magic_gets_no_comment_which_it_would_take_for_its_words() -> None:
    path = write_notebook(
        Path("a.ipynb"), ["%env XLA_USE_BF16=1\n", "import os, torch_xla\n", "os.putenv('XLA_USE_BF16', '1')"]
    )
    assert cli.main(["--add-noqa", "a.ipynb"]) == 1
    assert '"%env XLA_USE_BF16=1\\n"' in path.read_text() and "'1')  # noqa: TPU501" in path.read_text()


UNUSED = """import torch
x = 1  # noqa: TPU901
red(1)  # noqa: TPU901
blue(1)  # noqa: TPU901, TPU902, E501
y = 2  # noqa: TPU902, E501
z = 3  # noqa
"""


def test_noqa_that_suppresses_nothing_is_advice_and_can_be_removed(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.py", UNUSED)
    assert check() == 0
    assert "3 advice not shown" in capsys.readouterr().out
    left = found(capsys, "--select", "unused-noqa")
    assert [(one["line"], one["code"], one["advice"]) for one in left] == [(at, "TPU002", True) for at in (2, 4, 5)]
    assert check("--fix") == 0
    assert Path("a.py").read_text().splitlines() == [
        "import torch",
        "x = 1",
        "red(1)  # noqa: TPU901",
        "blue(1)  # noqa: TPU902, E501",
        "y = 2  # noqa: E501",
        "z = 3  # noqa",
    ]
    capsys.readouterr()
    assert found(capsys, "--advice") == []


@pytest.mark.process
def test_many_files_are_checked_by_several_processes_with_the_same_result() -> None:
    for number in range(45):
        write(f"{number % 7}/{number}.py", PADS if number % 3 else "print 1\n")
    one, many = (shell("check", "--jobs", jobs, "--select", "TPU301,syntax", ".") for jobs in ("1", "3"))
    assert one.returncode == many.returncode == 1
    assert one.stdout == many.stdout and one.stdout.count("TPU301") >= 30
    assert shell("check", "--jobs", "0").returncode == 2


@pytest.mark.parametrize("kind", ["a line", "a list", "a notebook"])
def test_data_in_the_form_of_code_is_not_checked(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten megabytes in a line took minutes."""
    if kind == "a notebook":
        write_notebook(Path("big.ipynb"), "import torch\nx = '" + "a" * 3_000_000 + "'\n")
    else:
        write("big.py", f"import torch\nx = [{('1, ' if kind == 'a line' else '1,' + chr(10)) * 1_000_000}]\n")
    write("a.py", BAD)
    assert check(".") == 1
    said = capsys.readouterr()
    assert "not checked, because it has" in said.err and "files with more than 2 MB" in said.err
    assert "TPU901" in said.out


# -- as a hook ----------------------------------------------------------------------------------------------------
