"""The command `python -m tpu_magics check PATH ...`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tpu_magics.check import fixes, formats
from tpu_magics.check.cells import CodeCell, cells_of, notebook_lines
from tpu_magics.check.config import CheckConfig, ConfigFinder, Rules, UsageError, files_of
from tpu_magics.check.engine import check_cells_of_file
from tpu_magics.check.finding import Finding, in_order
from tpu_magics.check.rule import Rule, as_text, overview, page
from tpu_magics.errors import TpuMagicsError
from tpu_magics.output import lost

CLEAN, FOUND, WRONG = 0, 1, 2
STDIN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="files and folders (default: .); - reads standard input"
    )
    parser.add_argument("--format", choices=tuple(formats.FORMATS), default="text", help="default: text")
    choice = "codes (TPU101), prefixes (TPU1), groups (values) or names (branch-on-value), separated by commas"
    parser.add_argument("--select", action="append", metavar="RULES", help=f"only these rules: {choice}")
    parser.add_argument("--ignore", action="append", metavar="RULES", help="without these rules")
    parser.add_argument("--fix", action="store_true", help="apply automatic fixes, and show the remaining findings")
    parser.add_argument("--unsafe-fixes", action="store_true", help="with --fix: also fixes that may change results")
    parser.add_argument("--diff", action="store_true", help="show the changes of --fix as a diff, without writing")
    parser.add_argument("--advice", action="store_true", help="show advice too, which never makes the check fail")
    parser.add_argument("--explain", metavar="RULE", help="explain a rule, by its code or name")
    parser.add_argument("--list-rules", action="store_true", help="list all rules, one per line")
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even if there are findings")
    parser.add_argument(
        "--stdin-filename", metavar="NAME", help="file name for standard input; .ipynb means a notebook"
    )
    parser.add_argument("--write-docs", type=Path, metavar="FILE", help=argparse.SUPPRESS)


def run(options: argparse.Namespace, rules: Sequence[Rule] | None = None) -> int:
    """Run the command; returns the exit code: 0 no findings, 1 findings, 2 an error."""
    try:
        if rules is None:
            from tpu_magics.check.rules import RULES

            rules = RULES
        return _run(options, Rules(tuple(rules)))
    except UsageError as error:
        print(error, file=sys.stderr)
        return WRONG


def _run(options: argparse.Namespace, rules: Rules) -> int:
    if options.explain is not None:
        return _explain(options.explain, rules)
    if options.list_rules:
        return _say(overview(rules.all))
    if options.write_docs is not None:
        options.write_docs.write_text(page(rules.all), encoding="utf-8")
        return CLEAN
    select, ignore = (
        rules.validate(_split(words), f"--{name}")
        for name, words in (("select", options.select), ("ignore", options.ignore))
    )
    check = _Check(options, ConfigFinder(rules, select, ignore))
    return check.stdin() if _reads_stdin(options) else check.files(options.paths or ["."])


def _split(options: Sequence[str] | None) -> list[str]:
    return [word.strip() for option in options or () for word in option.split(",") if word.strip()]


def _reads_stdin(options: argparse.Namespace) -> bool:
    if STDIN in options.paths and len(options.paths) > 1:
        raise UsageError("Standard input (-) cannot be checked together with files.")
    if options.stdin_filename and options.paths not in ([], [STDIN]):
        raise UsageError("--stdin-filename works with - only.")
    return bool(options.paths == [STDIN] or options.stdin_filename)


def _explain(word: str, rules: Rules) -> int:
    rule = rules.find(word)
    if rule is None:
        raise UsageError(
            f"There is no rule {word!r}.", "", "See `python -m tpu_magics check --list-rules` for all of them."
        )
    return _say(as_text(rule))


def _say(text: str, stream: str = "stdout") -> int:
    """Prints text; characters that the stream's encoding lacks become escapes."""
    file = getattr(sys, stream)
    encoding = getattr(file, "encoding", None) or "utf-8"
    file.write(text.encode(encoding, "backslashreplace").decode(encoding))
    file.flush()
    return CLEAN


@dataclass
class _Check:
    """One run of the command over files."""

    options: argparse.Namespace
    configs: ConfigFinder
    findings: list[Finding] = field(default_factory=list)
    count: int = 0
    fixed: int = 0
    failed: bool = False
    changed: bool = False

    def files(self, paths: Sequence[str]) -> int:
        missing: list[str] = []
        for path in files_of(paths, self.configs, missing):
            data = self._bytes(path)
            if data is not None:
                self._file(path, data)
        for path in missing:
            self._fail(f"{path}: no such file or folder")
        return self._end()

    def stdin(self) -> int:
        """Checks standard input as one file; with --fix the new text goes to standard output, the report to standard
        error."""
        data = sys.stdin.buffer.read()
        name = self.options.stdin_filename or ("<stdin>.ipynb" if _looks_like_notebook(data) else "<stdin>")
        self._file(name, data)
        return self._end()

    def _bytes(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            self._fail(f"{path}: {error.strerror or error}")
            return None

    def _file(self, path: str, data: bytes) -> None:
        self.count += 1
        config = self.configs.of(path)
        try:
            cells: Sequence[CodeCell] = cells_of(data, path, self._note)
            result = check_cells_of_file(cells, config)
            if self.options.fix or self.options.diff:
                unsafe = self.options.unsafe_fixes
                fixed = fixes.fix(cells, lambda now: check_cells_of_file(now, config), result, unsafe)
                result = self._apply_fixes(path, data, fixed, result, config)
            self.findings += result
        except Exception as error:  # our own bug: report it, and check the other files
            if lost(error):
                raise
            self._fail(f"{path}: the check failed with {type(error).__name__}: {error}. Please report this.")

    def _apply_fixes(
        self, path: str, data: bytes, fixed: fixes.FixResult, result: list[Finding], config: CheckConfig
    ) -> list[Finding]:
        """Show or write the fixes; returns the findings that remain."""
        self.changed = self.changed or bool(fixed.changes)
        if self.options.diff:
            _say(fixes.diff(fixed))
            return result
        try:
            if _reads_stdin(self.options):
                _write_bytes(fixes.new_bytes(path, data, fixed))
            elif fixed.changes:
                fixes.write(path, data, fixed)
        except TpuMagicsError as error:
            self._fail(str(error))
            return result
        self.fixed += fixed.count
        return check_cells_of_file(fixed.cells, config) if fixed.changes else result

    def _end(self) -> int:
        if self.options.diff:
            code = FOUND if self.changed else CLEAN
        else:
            self._show()
            code = FOUND if any(not finding.advice for finding in self.findings) else CLEAN
        if self.failed:
            return WRONG
        return CLEAN if self.options.exit_zero else code

    def _show(self) -> None:
        from tpu_magics import __version__

        lines = cache(_file_lines)
        shown = [one for one in in_order(self.findings) if self.options.advice or not one.advice]
        report = formats.CheckReport(
            shown, self.count, self.fixed, self.configs.rules.all, __version__,
            lambda finding: _line(lines(finding.path), finding),
            len(in_order(self.findings)) - len(shown),
        )  # fmt: skip
        stream = "stderr" if self.options.fix and _reads_stdin(self.options) else "stdout"
        if self.options.format == "text":
            _say(formats.text(report, _coloured(stream)), stream)
        else:
            _say(formats.FORMATS[self.options.format](report), stream)

    def _fail(self, text: str) -> None:
        self.failed = True
        self._note(text)

    def _note(self, text: str) -> None:
        _say(text + "\n", "stderr")


def _looks_like_notebook(data: bytes) -> bool:
    """JSON is also valid Python, without any findings."""
    return data.lstrip()[:1] == b"{" and b'"cells"' in data and b'"nbformat"' in data


def _file_lines(path: str) -> list[list[int]]:
    try:
        return notebook_lines(Path(path).read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, IndexError, RecursionError):
        return []


def _line(lines: list[list[int]], finding: Finding) -> int:
    """The line in the notebook's file; 1 if unknown, as for standard input."""
    number = (finding.cell or 0) - 1
    if not 0 <= number < len(lines):
        return 1
    return lines[number][min(finding.line, len(lines[number])) - 1]


def _write_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _coloured(stream: str) -> bool:
    """Colours only in a terminal (https://no-color.org)."""
    return bool(getattr(sys, stream).isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def main(argv: Sequence[str] | None = None, rules: Sequence[Rule] | None = None) -> int:
    """The command by itself, with its own rules where `rules` are given."""
    parser = argparse.ArgumentParser(prog="tpu-magics check")
    add_arguments(parser)
    return run(parser.parse_args(argv), rules)
