"""The command `python -m tpu_magics check PATH ...`."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tpu_magics.check import fixes, formats
from tpu_magics.check.cells import CodeCell, cells_of, notebook_lines
from tpu_magics.check.config import CheckConfig, ConfigFinder, Rules, UsageError, all_rules, files_of
from tpu_magics.check.engine import check_cells_of_file
from tpu_magics.check.finding import Finding, in_order
from tpu_magics.check.noqa import with_noqa
from tpu_magics.check.rule import Rule, as_text, overview, page
from tpu_magics.check.syntax import RULE_FAILED
from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.output import lost
from tpu_magics.runs.files import read_regular

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
    parser.add_argument(
        "--migrate",
        action="append_const",
        const="migrate",
        dest="select",
        help="what of torch_xla has which counterpart in TorchTPU",
    )
    parser.add_argument("--exclude", action="append", metavar="GLOBS", help="without these files and folders, too")
    parser.add_argument("--fix", action="store_true", help="apply automatic fixes, and show the remaining findings")
    parser.add_argument(
        "--unsafe-fixes", action="store_true", help="with --fix or --diff: also fixes that may change results"
    )
    parser.add_argument("--diff", action="store_true", help="show the changes of --fix as a diff, without writing")
    parser.add_argument("--add-noqa", action="store_true", help="add a noqa comment for each finding that there is")
    parser.add_argument("--advice", action="store_true", help="show advice too, which never makes the check fail")
    parser.add_argument("--statistics", action="store_true", help="show how often each rule was broken instead")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="without the findings that this file lists")
    parser.add_argument("--write-baseline", type=Path, metavar="FILE", help="list the findings in this file instead")
    parser.add_argument("--output-file", type=Path, metavar="FILE", help="write the report to a file")
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", help="check this many files at once (default: one for each CPU)"
    )
    parser.add_argument("--explain", metavar="RULE", help="explain a rule, by its code or name")
    parser.add_argument("--list-rules", action="store_true", help="list all rules, one per line")
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even if there are findings")
    parser.add_argument(
        "--stdin-filename", metavar="NAME", help="file name for standard input; .ipynb means a notebook"
    )
    parser.add_argument("--write-docs", type=Path, metavar="FILE", help=argparse.SUPPRESS)


def _positive(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of files, such as 4")
    return int(word)


def run(options: argparse.Namespace, rules: Sequence[Rule] | None = None) -> int:
    """Run the command; returns the exit code: 0 no findings, 1 findings, 2 an error."""
    try:
        if rules is None:
            return _run(options, all_rules())
        options.jobs = 1  # these rules are known in this process alone
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
    _refuse_combinations(options)
    known = _read_baseline(options.baseline)
    check = _Check(options, ConfigFinder(rules, select, ignore, tuple(_split(options.exclude))), known)
    return check.stdin() if _reads_stdin(options) else check.files(options.paths or ["."])


_CHANGING = ("fix", "diff", "add_noqa")


def _refuse_combinations(options: argparse.Namespace) -> None:
    if options.unsafe_fixes and not (options.fix or options.diff):
        raise UsageError(*fixes.UNSAFE_ALONE)
    asked = [f"--{name.replace('_', '-')}" for name in _CHANGING if getattr(options, name)]
    if options.add_noqa and (len(asked) > 1 or _reads_stdin(options)):
        beside = next((one for one in asked if one != "--add-noqa"), "standard input")
        raise UsageError(
            f"--add-noqa cannot be combined with {beside}.",
            "It writes comments into the files, for all that is found in them.",
            "Run it by itself, and --fix before it.",
        )
    if options.statistics and options.format in ("github", "sarif"):
        raise UsageError(f"--statistics has no format {options.format}.", "", "It is there as text and as json.")


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
class _Result:
    """What one file gave. `said`: streams and texts in order, as they are to be printed."""

    findings: list[Finding] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)
    fixed: int = 0
    failed: bool = False
    changed: bool = False

    def fail(self, text: str) -> None:
        self.failed = True
        self.note(text)

    def note(self, text: str) -> None:
        self.said.append(("stderr", text + "\n"))


@dataclass
class _File:
    """The check of one file, in this process or in another."""

    options: argparse.Namespace
    configs: ConfigFinder

    def __call__(self, path: str) -> _Result:
        result = _Result()
        try:
            data = read_regular(path)
        except OSError as error:
            result.fail(f"{path}: {error.strerror or error}")
            return result
        self.check(path, data, result)
        return result

    def check(self, path: str, data: bytes, result: _Result) -> None:
        config = self.configs.of(path)
        try:
            cells: Sequence[CodeCell] = cells_of(data, path, result.note)
            findings = check_cells_of_file(cells, config)
            if self.options.fix or self.options.diff:
                unsafe = self.options.unsafe_fixes
                fixed = fixes.fix(cells, lambda now: check_cells_of_file(now, config), findings, unsafe)
                findings = self._apply(path, data, fixed, findings, config, result)
            elif self.options.add_noqa:
                commented = fixes.with_texts(cells, [with_noqa(cell, findings) for cell in cells])
                findings = self._apply(path, data, commented, findings, config, result)
            for one in findings:
                if one.code == RULE_FAILED.code:
                    result.fail(f"{one.place}: {one.message} Please report this.")
            result.findings += [one for one in findings if one.code != RULE_FAILED.code]
        except Exception as error:  # our own bug: report it, and check the other files
            if lost(error):
                raise
            result.fail(f"{path}: the check failed with {type(error).__name__}: {error}. Please report this.")

    def _apply(
        self,
        path: str,
        data: bytes,
        fixed: fixes.FixResult,
        findings: list[Finding],
        config: CheckConfig,
        result: _Result,
    ) -> list[Finding]:
        """Show or write the changes; returns the findings that remain."""
        result.changed = bool(fixed.changes)
        if self.options.diff:
            result.said.append(("stdout", fixes.diff(fixed)))
            return findings
        try:
            if _reads_stdin(self.options):
                _write_bytes(fixes.new_bytes(path, data, fixed))
            elif fixed.changes:
                fixes.write(path, data, fixed)
        except TpuMagicsError as error:
            result.fail(str(error))
            return findings
        left = check_cells_of_file(fixed.cells, config) if fixed.changes else findings
        result.fixed = len(findings) - len(left) if self.options.add_noqa else fixed.count
        return left


_FEW = 40  # files for which starting processes takes longer than checking them
_here: _File | None = None  # in a process that checks files for another


def _begin(options: argparse.Namespace, select: Sequence[str], ignore: Sequence[str], exclude: Sequence[str]) -> None:
    global _here
    _here = _File(options, ConfigFinder(all_rules(), tuple(select), tuple(ignore), tuple(exclude)))


def _of_file(path: str) -> _Result:
    assert _here is not None
    return _here(path)


@dataclass
class _Check:
    """One run of the command over files. `known`: how often the baseline lists a finding."""

    options: argparse.Namespace
    configs: ConfigFinder
    known: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    count: int = 0
    fixed: int = 0
    failed: bool = False
    changed: bool = False

    def files(self, paths: Sequence[str]) -> int:
        missing: list[str] = []
        for result in self._results(list(files_of(paths, self.configs, missing))):
            self._take(result)
        for path in missing:
            self._take(_Result(said=[("stderr", f"{path}: no such file or folder\n")], failed=True), 0)
        return self._end()

    def _results(self, paths: Sequence[str]) -> Iterator[_Result]:
        """The findings of each file in order."""
        jobs = min(self.options.jobs or (os.cpu_count() or 1 if len(paths) > _FEW else 1), len(paths))
        if jobs <= 1:
            yield from map(_File(self.options, self.configs), paths)
            return
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        configs = self.configs
        given = (self.options, configs.select, configs.ignore, configs.exclude)
        with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, given) as processes:
            yield from processes.map(_of_file, paths, chunksize=max(1, min(20, len(paths) // (4 * jobs))))

    def stdin(self) -> int:
        """Checks standard input as one file; with --fix the new text goes to standard output, the report to standard
        error."""
        data = sys.stdin.buffer.read()
        name = self.options.stdin_filename or ("<stdin>.ipynb" if _looks_like_notebook(data) else "<stdin>")
        result = _Result()
        _File(self.options, self.configs).check(name, data, result)
        self._take(result)
        return self._end()

    def _take(self, result: _Result, files: int = 1) -> None:
        for stream, text in result.said:
            _say(text, stream)
        self.count += files
        self.findings += result.findings
        self.fixed += result.fixed
        self.failed = self.failed or result.failed
        self.changed = self.changed or result.changed

    def _end(self) -> int:
        findings = in_order(self.findings)
        if self.options.write_baseline is not None:
            return self._write_baseline(findings)
        new = [one for one in findings if not self._is_known(one)]
        if self.options.diff:
            code = FOUND if self.changed else CLEAN
        else:
            self._show([one for one in new if self._is_shown(one)], len(new), len(findings) - len(new))
            code = FOUND if any(not finding.advice for finding in new) else CLEAN
        if self.failed:
            return WRONG
        return CLEAN if self.options.exit_zero else code

    def _is_shown(self, finding: Finding) -> bool:
        """Advice where it is asked for: by --advice, or by its own code or name in --select."""
        named = {word.lower() for word in self.configs.select}
        rule = self.configs.rules.name(finding.code)
        return not finding.advice or self.options.advice or bool(named & {finding.code.lower(), rule})

    def _show(self, shown: Sequence[Finding], new: int, known: int) -> None:
        from tpu_magics import __version__

        lines = cache(_file_lines)
        report = formats.CheckReport(
            shown, self.count, self.fixed, self.configs.rules.all, __version__,
            lambda finding: _line(lines(finding.path), finding), new - len(shown), known,
            "given a comment" if self.options.add_noqa else "fixed",
        )  # fmt: skip
        if self.options.output_file is not None:
            self._write(self.options.output_file, self._text(report, False))
            return
        stream = "stderr" if self.options.fix and _reads_stdin(self.options) else "stdout"
        _say(self._text(report, _coloured(stream)), stream)

    def _text(self, report: formats.CheckReport, colour: bool) -> str:
        if self.options.statistics:
            return formats.statistics(report, self.options.format == "json")
        if self.options.format == "text":
            return formats.text(report, colour)
        return formats.FORMATS[self.options.format](report)

    # -- the baseline -------------------------------------------------------------------------------------------------

    def _is_known(self, finding: Finding) -> bool:
        """Whether the baseline lists it; a second one of its kind is known only where two are listed."""
        if not self.known[key := _baseline_key(finding)]:
            return False
        self.known[key] -= 1
        return True

    def _write_baseline(self, findings: Sequence[Finding]) -> int:
        counts = Counter(map(_baseline_key, findings))
        text = json.dumps({"findings": dict(sorted(counts.items()))}, indent=1)
        self._write(self.options.write_baseline, text + "\n")
        _say(f"{plural(len(findings), 'finding', '')} listed in {self.options.write_baseline}.\n")
        return WRONG if self.failed else CLEAN

    def _write(self, path: Path, text: str) -> None:
        try:
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"{path} was not written.", f"{error.strerror or error}.") from error


def _baseline_key(finding: Finding) -> str:
    """The file, the rule and the line of code, wherever it moves."""
    line = hashlib.sha256(" ".join(finding.source.split()).encode("utf-8", "replace")).hexdigest()[:12]
    return f"{Path(os.path.relpath(finding.path)).as_posix()} {finding.code} {line}"


def _read_baseline(path: Path | None) -> Counter[str]:
    if path is None:
        return Counter()
    try:
        found = json.loads(read_regular(path))["findings"]
        return Counter({str(key): int(count) for key, count in found.items()})
    except OSError as error:
        raise UsageError(f"The baseline {path} cannot be read.", f"{error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(
            f"{path} is no baseline.", "", f"Write one with `python -m tpu_magics check --write-baseline {path}`."
        ) from None


def _looks_like_notebook(data: bytes) -> bool:
    """JSON is also valid Python, without any findings."""
    return data.lstrip()[:1] == b"{" and b'"cells"' in data and b'"nbformat"' in data


def _file_lines(path: str) -> list[list[int]]:
    try:
        return notebook_lines(read_regular(path).decode("utf-8-sig"))
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
