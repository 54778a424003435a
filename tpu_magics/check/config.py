"""Selects rules and files: by `[tool.tpu_magics]` in pyproject.toml and by the options of the command line.

[tool.tpu_magics]
select = ["values", "shapes", "TPU3"]      # groups, codes, prefixes of codes, names of rules
ignore = ["printed-tensor"]
exclude = ["legacy", "notebooks/old/*"]    # globs, relative to the folder of this file
per-file-ignores = { "tests/*" = ["values"] }
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tpu_magics.check.finding import Finding
from tpu_magics.check.noqa import UNUSED_NOQA
from tpu_magics.check.rule import Rule
from tpu_magics.check.syntax import RULE_FAILED, SYNTAX
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.files import read_regular, working_folder

KEYS = ("select", "ignore", "exclude", "per-file-ignores")
TABLES = ("tpu_magics", "tpu-magics")

_TABLE = re.compile(r"""^\s*\[\s*tool\s*\.\s*["']?tpu[_-]magics\b""", re.MULTILINE)


class UsageError(TpuMagicsError):
    """An invalid option or configuration; the command ends with exit code 2."""


@dataclass(frozen=True)
class Rules:
    """All rules, by the words that select them."""

    rules: Sequence[Rule]

    @cached_property
    def all(self) -> tuple[Rule, ...]:
        return (SYNTAX, UNUSED_NOQA, RULE_FAILED, *self.rules)

    def validate(self, words: Iterable[str], where: str) -> tuple[str, ...]:
        """The words unchanged; raises UsageError for a word that selects no rule."""
        words = tuple(words)
        for word in words:
            if not any(_specificity(word, rule.code, rule.group, rule.name) for rule in self.all):
                groups = ", ".join(dict.fromkeys(rule.group for rule in self.all))
                raise UsageError(
                    f"{where}: no rule matches {word!r}.",
                    f"Rules are selected by code (TPU101), prefix (TPU1), name or group ({groups}).",
                    "See `python -m tpu_magics check --list-rules` for all of them.",
                )
        return words

    def find(self, word: str) -> Rule | None:
        """The one rule of this code or name."""
        wanted = word.lower()
        return next((rule for rule in self.all if wanted in (rule.code.lower(), rule.name)), None)

    def name(self, code: str) -> str:
        rule = self.find(code)
        return rule.name if rule else ""


@cache
def all_rules() -> Rules:
    from tpu_magics.check.rules import RULES

    return Rules(RULES)


def _specificity(word: str, code: str, group: str, name: str) -> int:
    """How specifically a word selects a rule: 0 not at all, more for fewer rules."""
    small = word.lower()
    if small == "all":
        return 1
    if small == group:
        return 1 + len("tpu1")  # a group has one hundred numbers
    if small == name:
        return 1 + len(code)
    return 1 + len(small) if small.startswith("tpu") and code.lower().startswith(small) else 0


@dataclass(frozen=True)
class CheckConfig:
    """The configuration for the files below one folder. Empty `select`: every rule."""

    rules: Rules
    root: Path = field(default_factory=working_folder)
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def wants(self, finding: Finding) -> bool:
        """Whether a finding is selected. Of `select` and `ignore` the more specific word wins, on a tie `ignore`.
        TPU001 and TPU003 are reported whatever is selected."""
        if self._max_specificity(self._ignored_here(finding.path), finding):
            return False
        ignored = self._max_specificity(self.ignore, finding)
        if finding.code in (SYNTAX.code, RULE_FAILED.code):
            return ignored <= 1
        selected = self._max_specificity(self.select, finding) if self.select else 1
        return selected > ignored or (selected > 0 and not ignored)

    @property
    def used(self) -> tuple[Rule, ...]:
        """The rules that may find something here: one that is opt-in has to be selected."""
        named = [word for word in self.select if word.lower() != "all"]
        return tuple(
            rule
            for rule in self.rules.rules
            if not rule.opt_in or any(_specificity(word, rule.code, rule.group, rule.name) for word in named)
        )

    def excludes(self, path: str | Path) -> bool:
        """Whether a file or folder is left out by `exclude`."""
        return bool(self.exclude) and any(_matches(glob, self._relative(path)) for glob in self.exclude)

    def _ignored_here(self, path: str) -> tuple[str, ...]:
        if not self.per_file_ignores:
            return ()
        relative = self._relative(path)
        return tuple(word for glob, words in self.per_file_ignores if _matches(glob, relative) for word in words)

    def _max_specificity(self, words: Iterable[str], finding: Finding) -> int:
        name = self.rules.name(finding.code)
        return max((_specificity(word, finding.code, finding.group, name) for word in words), default=0)

    def _relative(self, path: str | Path) -> str:
        absolute = working_folder() / path
        return (absolute.relative_to(self.root) if absolute.is_relative_to(self.root) else absolute).as_posix()


def _matches(glob: str, path: str) -> bool:
    """Whether a glob matches a path or a folder above it. Without a slash it matches any name in the path.

    `*`, `?` and `[ab]` stay inside one name, a name `**` stands for any number of folders. In linear time: whatever the
    stars, no name is looked at twice for the same part of the glob.
    """
    names, parts = path.split("/"), glob.removeprefix("./").strip("/").split("/")
    if "/" not in glob.removeprefix("./").rstrip("/"):
        return any(fnmatchcase(name, parts[0]) for name in names)
    reached = _past_stars({0}, parts)  # parts of the glob that may come next
    for name in names:
        stay = {at for at in reached if at < len(parts) and parts[at] == "**"}
        go = {at + 1 for at in reached if at < len(parts) and fnmatchcase(name, parts[at])}
        reached = _past_stars(stay | go, parts)
        if len(parts) in reached:
            return True
    return False


def _past_stars(reached: set[int], parts: Sequence[str]) -> set[int]:
    for at in sorted(reached):
        while at < len(parts) and parts[at] == "**":
            at += 1
            reached.add(at)
    return reached


# -- reading --------------------------------------------------------------------------------------------------------


@dataclass
class ConfigFinder:
    """Finds the configuration of a folder: the nearest pyproject.toml above it with our table."""

    rules: Rules
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    _known: dict[Path, CheckConfig] = field(default_factory=dict)

    def of(self, path: str | Path) -> CheckConfig:
        """For a file or folder. On the command line `select` replaces `select` and `ignore` of the file, `ignore` and
        `exclude` are added."""
        result = working_folder() / path
        return self._of_folder(result if result.is_dir() else result.parent)

    def _of_folder(self, folder: Path) -> CheckConfig:
        if folder not in self._known:
            config = read(folder / "pyproject.toml", self.rules)
            if config is not None:
                self._known[folder] = self._overridden(config)
            elif folder.parent == folder:
                self._known[folder] = self._overridden(CheckConfig(self.rules))
            else:
                self._known[folder] = self._of_folder(folder.parent)
        return self._known[folder]

    def _overridden(self, config: CheckConfig) -> CheckConfig:
        if self.select:
            config = replace(config, select=self.select, ignore=())
        return replace(config, ignore=config.ignore + self.ignore, exclude=config.exclude + self.exclude)


def read(path: Path, rules: Rules) -> CheckConfig | None:
    """The configuration in a pyproject.toml; None if there is no file or no such table. Raises UsageError."""
    try:
        data = read_regular(path)
        text = data.decode("utf-8-sig")
    except OSError:
        return None
    except UnicodeDecodeError:
        if b"[tool.tpu" in data.replace(b"\0", b""):
            raise UsageError(
                f"{path} is not in UTF-8, as TOML must be.", "", "Save it in UTF-8: [tool.tpu_magics] is in it."
            ) from None
        return None
    table = _table(path, text) if "tpu_magics" in text or "tpu-magics" in text else None
    return None if table is None else _config(path, table, rules)


def _table(path: Path, text: str) -> Any:
    parser = _toml()
    if parser is None:
        if not _TABLE.search(text):
            return None
        raise UsageError(
            f"[tool.tpu_magics] in {path} cannot be read.",
            "Python 3.10 has no TOML parser.",
            "Run `pip install tomli`, or use Python 3.11 or newer.",
        )
    try:
        result = parser.loads(text)
    except (ValueError, RecursionError) as error:
        if not _TABLE.search(text):
            return None
        what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(
            f"{path} is not valid TOML: {what}.", "", "Fix the file: [tool.tpu_magics] is in it."
        ) from None
    tool = result.get("tool")
    return next((tool[name] for name in TABLES if name in tool), None) if isinstance(tool, dict) else None


def _toml() -> Any:
    """tomllib of Python 3.11, or tomli; None if there is neither."""
    for name in ("tomllib", "tomli"):
        with suppress(ImportError):
            return importlib.import_module(name)
    return None


def _config(path: Path, table: Any, rules: Rules) -> CheckConfig:
    if not isinstance(table, dict):
        raise UsageError(f"[tool.tpu_magics] in {path} is not a table.", "", f"Its keys are {', '.join(KEYS)}.")
    result = {key.replace("_", "-"): value for key, value in table.items()}
    unknown = [key for key in result if key not in KEYS]
    if unknown:
        raise UsageError(
            f"[tool.tpu_magics] in {path} has an unknown key: {unknown[0]}.", "", f"Its keys are {', '.join(KEYS)}."
        )
    where = f"[tool.tpu_magics] in {path}"
    per_file = result.get("per-file-ignores", {})
    if not isinstance(per_file, Mapping):
        raise UsageError(f"{where}: per-file-ignores is not a table.", "", 'Write `"tests/*" = ["values"]` in it.')
    return CheckConfig(
        rules,
        path.parent,
        rules.validate(_words(result, "select", where), where),
        rules.validate(_words(result, "ignore", where), where),
        _words(result, "exclude", where),
        tuple((glob, rules.validate(_words(per_file, glob, where), where)) for glob in per_file),
    )


def _words(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    words = table.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"{where}: {key} is not a list of strings.", "", f'Write `{key} = ["..."]`.')
    return tuple(words)


SUFFIXES = (".py", ".ipynb")
# Folders without the user's own code.
SKIPPED = frozenset(("node_modules", "build", "dist", "__pycache__", "site-packages", "venv"))


def files_of(paths: Sequence[str], configs: ConfigFinder, missing: list[str]) -> Iterator[str]:
    """The files to check, in order and each once; paths that are neither file nor folder are added to `missing`.

    A file that is named is checked whatever its suffix, unless the configuration excludes it.
    """
    seen: set[Path] = set()
    for path in map(Path, paths):
        if not os.path.exists(path):  # noqa: PTH110 (Path.exists raises for a loop of links)
            missing.append(str(path))
            continue
        for file in _walk(path, configs) if path.is_dir() else (path,):
            real = file.resolve()
            if real not in seen and not configs.of(file).excludes(file):
                seen.add(real)
                yield str(file)


def _walk(folder: Path, configs: ConfigFinder) -> Iterator[Path]:
    """The Python files and notebooks below a folder, sorted by name. A link to a folder is not followed: it may lead
    anywhere, and is checked where it is named itself."""
    for path in _entries(folder):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if not path.is_symlink() and not _skipped(path) and not configs.of(path).excludes(path):
                yield from _walk(path, configs)
        elif path.name.lower().endswith(SUFFIXES) and path.is_file():
            yield path


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder; none if it is not readable."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _skipped(folder: Path) -> bool:
    return folder.name in SKIPPED or (folder / "pyvenv.cfg").is_file()
