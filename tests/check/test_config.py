"""Rule selection: `[tool.tpu_magics]` and the options of the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tpu_magics.check.config as config_module
from tests.check.own_rules import RULES, finding
from tpu_magics.check import rules as real_rules
from tpu_magics.check.config import CheckConfig, ConfigFinder, Rules, UsageError, files_of, read

ALL = Rules(RULES)
FINDINGS = {
    "TPU901": finding(code="TPU901", group="values"),
    "TPU902": finding(code="TPU902", group="shapes"),
    "TPU911": finding(code="TPU911", group="launch"),
    "TPU001": finding(code="TPU001", group="syntax"),
}


def wanted(config: CheckConfig) -> set[str]:
    return {code for code, found in FINDINGS.items() if config.wants(found)}


@pytest.mark.parametrize(
    ("select", "ignore", "codes"),
    [
        ([], [], "901 902 911 001"),
        (["TPU901"], [], "901 001"),
        (["tpu901"], [], "901 001"),
        (["TPU90"], [], "901 902 001"),
        (["TPU9", "values"], [], "901 902 911 001"),
        (["values"], [], "901 001"),
        (["call-of-blue"], [], "902 001"),
        (["all"], [], "901 902 911 001"),
        ([], ["TPU90"], "911 001"),
        ([], ["launch", "call-of-red"], "902 001"),
        ([], ["TPU001"], "901 902 911"),
        ([], ["syntax"], "901 902 911"),
        ([], ["all"], "001"),
        (["TPU901"], ["TPU90"], "901 001"),
        (["TPU90"], ["TPU901"], "902 001"),
        (["TPU901"], ["TPU901"], "001"),
        (["values"], ["values"], "001"),
        (["call-of-red"], ["values"], "901 001"),
        (["values"], ["all"], "901 001"),
        (["all"], ["values"], "902 911 001"),
        (["TPU"], ["values"], "902 911 001"),
        (["TPU9"], ["values"], "902 911 001"),
    ],
)
def test_select_and_ignore(select: list[str], ignore: list[str], codes: str) -> None:
    config = CheckConfig(ALL, select=ALL.validate(select, "x"), ignore=ALL.validate(ignore, "x"))
    assert wanted(config) == {f"TPU{code}" for code in codes.split()}


@pytest.mark.parametrize("word", ["TPU903", "E501", "", "value", "TPU9011", "call-of", "tp", "T"])
def test_a_word_that_names_no_rule_is_wrong(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        ALL.validate([word], "--select")
    assert repr(word) in str(caught.value)
    assert "syntax, values, shapes, launch" in str(caught.value)


def test_rules_are_found_by_code_and_name() -> None:
    found = ALL.find("tpu901"), ALL.find("call-of-blue"), ALL.find("does-not-parse")
    assert [one.code for one in found if one] == ["TPU901", "TPU902", "TPU001"]
    assert ALL.find("TPU90") is None


# -- the table ------------------------------------------------------------------------------------------------------


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_table_is_read(tmp_path: Path) -> None:
    text = """
[tool.tpu_magics]
select = ["TPU9"]
ignore = ["call-of-blue"]
exclude = ["old", "gen/*.py"]
per-file-ignores = { "tests/*" = ["values"], "*.ipynb" = ["TPU911"] }
"""
    config = read(table(tmp_path, text), ALL)
    assert config is not None
    assert (config.select, config.ignore, config.exclude) == (("TPU9",), ("call-of-blue",), ("old", "gen/*.py"))
    assert wanted(config) == {"TPU901", "TPU911", "TPU001"}
    for path, codes in (("tests/a.py", {"TPU911"}), ("a.ipynb", {"TPU901"}), ("tests/deep/a.ipynb", set())):
        found = [finding(code=one.code, group=one.group, path=str(tmp_path / path)) for one in FINDINGS.values()]
        assert {one.code for one in found if config.wants(one)} == codes | {"TPU001"}


@pytest.mark.parametrize("name", ["tpu-magics", '"tpu_magics"', "tpu_magics"])
def test_the_table_has_two_spellings(tmp_path: Path, name: str) -> None:
    config = read(table(tmp_path, f"[tool.{name}]\nper_file_ignores = {{}}\nselect = ['values']\n"), ALL)
    assert config is not None
    assert config.select == ("values",)


@pytest.mark.parametrize(
    "text",
    ["", "[tool.ruff]\nx = 1\n", "[project]\nname = 'tpu_magics'\n", "tool = 3 # tpu_magics", "broken [ # tpu_magics"],
)
def test_a_file_without_the_table_is_none(tmp_path: Path, text: str) -> None:
    assert read(table(tmp_path, text), ALL) is None
    assert read(tmp_path / "none.toml", ALL) is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("selects = []", "unknown key: selects"),
        ("select = 'TPU9'", "select is not a list of strings"),
        ("select = [3]", "select is not a list of strings"),
        ("ignore = ['TPU777']", "no rule matches 'TPU777'"),
        ("exclude = 3", "exclude is not a list of strings"),
        ("per-file-ignores = []", "per-file-ignores is not a table"),
        ("per-file-ignores = {'a' = 'values'}", "a is not a list of strings"),
        ("per-file-ignores = {'a' = ['TPU777']}", "no rule matches 'TPU777'"),
        ("select = [", "is not valid TOML"),
    ],
)
def test_a_wrong_table_is_an_error_that_names_the_file(tmp_path: Path, text: str, part: str) -> None:
    path = table(tmp_path, f"[tool.tpu_magics]\n{text}\n")
    with pytest.raises(UsageError) as caught:
        read(path, ALL)
    assert part in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_table_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a table"):
        read(table(tmp_path, "[tool]\ntpu_magics = 3\n"), ALL)


def test_without_a_reader_of_toml_only_our_own_table_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.10 without tomli."""
    monkeypatch.setattr(config_module, "_toml", lambda: None)
    assert read(table(tmp_path, "[project]\nname = 'tpu_magics'\n"), ALL) is None
    with pytest.raises(UsageError, match="pip install tomli"):
        read(table(tmp_path, "[tool.tpu_magics]\n"), ALL)


# -- the nearest table, and the command line ------------------------------------------------------------------------


def test_the_nearest_table_counts(tmp_path: Path) -> None:
    table(tmp_path, "[tool.tpu_magics]\nselect = ['values']\n")
    for name, text in (
        ("a/b", ""),
        ("a", "[project]\nname = 'x'\n"),
        ("c", "[tool.tpu_magics]\nselect = ['shapes']\n"),
    ):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        table(tmp_path / name, text)
    configs = ConfigFinder(ALL)
    assert configs.of(tmp_path / "a" / "b" / "x.py").select == ("values",)
    assert configs.of(tmp_path / "c").select == ("shapes",)
    assert configs.of(tmp_path / "c" / "none" / "x.py").root == tmp_path / "c"


def test_the_command_line_wins(tmp_path: Path) -> None:
    table(tmp_path, "[tool.tpu_magics]\nselect = ['values']\nignore = ['TPU902']\n")
    assert wanted(ConfigFinder(ALL, select=("TPU902",)).of(tmp_path)) == {"TPU902", "TPU001"}
    assert wanted(ConfigFinder(ALL, ignore=("TPU901",)).of(tmp_path)) == {"TPU001"}
    assert wanted(ConfigFinder(ALL).of(tmp_path)) == {"TPU901", "TPU001"}


@pytest.mark.parametrize(
    ("glob", "path", "fits"),
    [
        ("old", "old/a.py", True),
        ("old", "x/old/a.py", True),
        ("old/", "old/a.py", True),
        ("old", "older/a.py", False),
        ("*.ipynb", "x/y/a.ipynb", True),
        ("a?.py", "ab.py", True),
        ("x/*.py", "x/a.py", True),
        ("x/*.py", "x/y/a.py", False),
        ("x/**/*.py", "x/y/z/a.py", True),
        ("x/**/*.py", "x/a.py", True),
        ("x/**", "x/y/a.py", True),
        ("**/gen", "a/b/gen/c.py", True),
        ("./x/y", "x/y/a.py", True),
        ("x/y", "a/x/y/b.py", False),
        ("x.y/z", "xxy/z", False),
        ("tests/*", "tests/deep/a.py", True),
        ("a[bc].py", "ac.py", True),
        ("/x/y", "x/y/a.py", True),
        ("**", "x/a.py", True),
        ("a/**/b/**/c", "a/b/x/y/c", True),
        ("a/**/b/**/c", "a/x/c", False),
        ("*a" * 30 + "b", "a" * 4000 + ".py", False),  # these would take for ever where stars are tried in all ways
        ("**/" * 30 + "b", "a/" * 400 + "c.py", False),
        ("x/" + "*a" * 30 + "b", "x/" + "a" * 4000, False),
    ],
)
def test_globs(tmp_path: Path, glob: str, path: str, fits: bool) -> None:
    assert CheckConfig(ALL, tmp_path, exclude=(glob,)).excludes(tmp_path / path) is fits


# -- folders --------------------------------------------------------------------------------------------------------


def walked(tmp_path: Path, *paths: str) -> tuple[list[str], list[str]]:
    missing: list[str] = []
    found = files_of([str(tmp_path / path) for path in paths], ConfigFinder(ALL), missing)
    return [Path(one).relative_to(tmp_path).as_posix() for one in found], missing


def test_folders_are_walked_in_order(tmp_path: Path) -> None:
    for path in (
        "b.py", "a/z.py", "a/b.ipynb", "a/notes.txt", "a/b.pyc", ".hidden.py", ".git/x.py", "c/D.PY", "build/x.py",
        ".ipynb_checkpoints/c.ipynb", "node_modules/x.py", "__pycache__/x.py", "my_env/pyvenv.cfg", "my_env/x.py",
        ".venv/x.py", "old/x.py", "c/old/y.py",
    ):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    table(tmp_path, "[tool.tpu_magics]\nexclude = ['old']\n")
    assert walked(tmp_path, ".") == (["a/b.ipynb", "a/z.py", "b.py", "c/D.PY"], [])
    assert walked(tmp_path, "b.py", ".", "a/notes.txt", "nowhere") == (
        ["b.py", "a/b.ipynb", "a/z.py", "c/D.PY", "a/notes.txt"],
        [str(tmp_path / "nowhere")],
    )
    assert walked(tmp_path, "build", ".venv/x.py", "old/x.py") == (["build/x.py", ".venv/x.py"], [])


def test_a_link_to_a_folder_is_followed_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x.py").write_text("")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    assert walked(tmp_path, "in") == ([], [])
    assert walked(tmp_path, "in/link") == (["in/link/x.py"], [])


def test_a_pipe_in_place_of_a_table_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pyproject.toml")
    assert read(tmp_path / "pyproject.toml", ALL) is None


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ("[tool.tpu_magics]\nselect = ['ä']\n".encode("latin-1"), "not in UTF-8"),
        ("[tool.tpu_magics]\nselect = ['values']\n".encode("utf-16"), "not in UTF-8"),
        (b"[tool.tpu_magics]\nselect = " + b"[" * 100_000, "not valid TOML"),
    ],
    ids=("latin-1", "utf-16", "deep"),
)
def test_a_table_that_cannot_be_read_is_an_error_that_names_the_file(tmp_path: Path, data: bytes, part: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=part) as raised:
        read(path, ALL)
    assert str(path) in str(raised.value)
    path.write_bytes(data.replace(b"tpu_magics", b"other").replace("tpu_magics".encode("utf-16-le"), b"o\0"))
    assert read(path, ALL) is None


def test_the_example_of_the_module_is_right(tmp_path: Path) -> None:
    real = Rules(tuple(real_rules.RULES))
    text = (config_module.__doc__ or "").partition("\n\n")[2]
    assert read(table(tmp_path, text), real) is not None


def test_links_make_no_loop_and_no_file_twice(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "y.py").symlink_to(tmp_path / "a" / "x.py")
    assert walked(tmp_path, ".") == (["a/x.py"], [])
