"""`python -m tpu_magics check`: from files to a report and an exit code."""

from __future__ import annotations

import io
import json
import os
import shlex
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
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "a.py":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
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
    assert cli.main(["."], [broken]) == 2
    shown = capsys.readouterr()
    assert "a.py: the check failed with RuntimeError: broken." in shown.err
    assert "b.py:1:1: TPU001" in shown.out


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


def hook() -> dict[str, str]:
    """The fields of our one hook: the file is plain `key: value` lines, so that no YAML library is needed here."""
    lines = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8").splitlines()
    fields = [line.lstrip("- ").partition(": ") for line in lines if line and not line.startswith("#")]
    return {key: text for key, _, text in fields}


@pytest.mark.process
def test_the_hook_s_entry_runs_on_a_list_of_staged_files() -> None:
    """As pre-commit does it: the entry, and the names of the staged files of these types."""
    assert hook()["id"] == "tpu-magics-check"
    assert hook()["language"] == "python"
    assert hook()["types_or"] == "[python, jupyter]"
    subprocess.run(["git", "init", "-q"], check=True)
    write("src/a.py", REAL)
    write("src/clean.py", "x = 1\n")
    write_notebook(Path("b.ipynb"), REAL, "!ls")
    write("unstaged.py", REAL)
    write("notes.txt", REAL)
    subprocess.run(["git", "add", "src", "b.ipynb", "notes.txt"], check=True)
    listed = subprocess.run(["git", "diff", "--staged", "--name-only"], capture_output=True, text=True, check=True)
    staged = [name for name in listed.stdout.split() if name.endswith((".py", ".ipynb"))]
    program, *arguments = shlex.split(hook()["entry"])
    installed = Path(sys.executable).parent / program
    done = subprocess.run([str(installed), *arguments, *staged], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "src/a.py:8:12: TPU101" in done.stdout
    assert "b.ipynb, cell 1, line 8: TPU101" in done.stdout
    assert "of 3 files" in done.stdout
    assert subprocess.run([str(installed), *arguments, "src/clean.py"], capture_output=True).returncode == 0
