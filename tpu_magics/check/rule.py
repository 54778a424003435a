"""What a rule is, and its documentation from its docstring: for the terminal, docs/rules.md and SARIF."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

SECTIONS = ("What it does", "Why this is bad", "Example", "Use instead", "Limitations")
CODE = ("Example", "Use instead")

GROUPS = {
    "syntax": "Code that Python cannot parse, and comments for this checker.",
    "values": "XLA's first rule: no branches on data, and no reads of values during a step.",
    "shapes": "XLA's second rule: no shapes that depend on data.",
    "recompiles": "XLA's third rule: few different shapes.",
    "launch": "Problems between the notebook and the processes that train.",
    "precision": "Number formats on a TPU.",
    "trainer": "Arguments of the transformers Trainer.",
    "tensorflow": "What TensorFlow needs on a TPU.",
    "migrate": "From torch_xla to TorchTPU: only with `--migrate`, or where it is selected.",
}
ARGUMENTS = ("launch", "precision", "trainer", "tensorflow")  # groups about what is passed

_HEAD = """\
# Rules

Generated from the rules' docstrings by `python -m tpu_magics check --write-docs docs/rules.md`; do not edit.

`python -m tpu_magics check PATH ...` checks Python files and notebooks, `%tpu_check` the notebook in which it runs. No
file is imported or run. `# noqa: CODE` at the end of a line suppresses a rule there, `# tpu_magics: skip-file` skips a
whole file, and `[tool.tpu_magics]` in pyproject.toml selects rules with `select`, `ignore`, `exclude` and
`per-file-ignores`: by code (`TPU101`), by prefix (`TPU1`), by name (`branch-on-value`) or by group (`values`).

"""


class Rule:
    """One rule. Its docstring has the sections of its documentation. `check` gets the nodes of the kinds in `nodes`,
    `check_program` the whole program."""

    code: ClassVar[str]
    name: ClassVar[str]
    group: ClassVar[str]
    why: ClassVar[str]
    nodes: ClassVar[tuple[type[ast.AST], ...]] = ()
    unsafe_fix: ClassVar[bool] = False  # its automatic fix may change results
    opt_in: ClassVar[bool] = False  # whether it is used only where it is selected by its group, code or name
    in_tests: ClassVar[bool] = True  # whether `check_program` gets the tests of pytest, unittest and absl, too

    def check(self, node: Any, ctx: RuleContext) -> Iterable[Finding]:  # noqa: ARG002
        return ()

    def check_program(self, program: CheckedProgram) -> Iterable[Finding]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class RuleDoc:
    """The documentation of a rule. `sections` are those of its docstring, in order."""

    code: str
    name: str
    group: str
    title: str
    why: str
    sections: dict[str, str]

    def section(self, name: str) -> str:
        return self.sections.get(name, "")


@cache
def rule_doc(rule: Rule) -> RuleDoc:
    """Parses a rule's docstring: the title is its first line, a section begins at the margin."""
    lines = inspect.cleandoc(rule.__doc__ or "").split("\n")
    sections: dict[str, list[str]] = {}
    for line in lines[1:]:
        if line.strip() in SECTIONS and line == line.strip():
            sections[line] = []
        elif sections:
            sections[list(sections)[-1]].append(line)
    texts = {name: textwrap.dedent("\n".join(section)).strip("\n") for name, section in sections.items()}
    return RuleDoc(rule.code, rule.name, rule.group, lines[0].strip(), rule.why, texts)


def rule_url(rule: Rule) -> str:
    """Its part of the documentation on the web; "" as long as the package names none.

    It is that of the package's metadata: its `Documentation`, or docs/rules.md in its `Repository`.
    """
    base = _documentation()
    return f"{base}#{rule.code.lower()}-{rule.name}" if base else ""


@cache
def _documentation() -> str:
    try:
        named = importlib.metadata.metadata("tpu-magics").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    urls = {name.strip().lower(): url.strip() for name, _, url in (one.partition(",") for one in named)}
    if "documentation" in urls:
        return f"{urls['documentation'].rstrip('/')}/rules.html"
    return f"{urls['repository'].rstrip('/')}/blob/main/docs/rules.md" if "repository" in urls else ""


def as_text(rule: Rule) -> str:
    """For a terminal."""
    result = rule_doc(rule)
    parts = [f"{result.code} {result.name} (group {result.group})", result.title]
    parts += [f"{name}\n{textwrap.indent(text, '    ')}" for name, text in result.sections.items()]
    parts += [url] if (url := rule_url(rule)) else []
    return "\n\n".join(parts) + "\n"


def as_markdown(rule: Rule) -> str:
    """For the docs, and for the help of a SARIF viewer."""
    result = rule_doc(rule)
    parts = [f"### {result.code} {result.name}", result.title]
    for name, text in result.sections.items():
        parts.append(f"**{name}**")
        parts.append(f"```python\n{text}\n```" if name in CODE else text)
    return "\n\n".join(parts) + "\n"


def overview(rules: Iterable[Rule]) -> str:
    """One line for each rule."""
    return "".join(f"{rule.code}  {rule.group:<11} {rule.name:<34} {rule_doc(rule).title}\n" for rule in _sorted(rules))


def page(rules: Iterable[Rule]) -> str:
    """docs/rules.md."""
    ordered = _sorted(rules)
    parts = [_HEAD, "| code | name | group | what |\n|---|---|---|---|\n"]
    parts += [
        f"| [{rule.code}](#{rule.code.lower()}-{rule.name}) | {rule.name} | {rule.group} | {_cell(rule)} |\n"
        for rule in ordered
    ]
    for group in dict.fromkeys(rule.group for rule in ordered):
        parts.append(f"\n## {group}\n\n{GROUPS.get(group, '')}\n")
        parts += ["\n" + as_markdown(rule) for rule in ordered if group == rule.group]
    return "".join(parts)


def _cell(rule: Rule) -> str:
    return rule_doc(rule).title.replace("|", "\\|")


def _sorted(rules: Iterable[Rule]) -> list[Rule]:
    return sorted(rules, key=lambda rule: rule.code)
