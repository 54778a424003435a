"""How large tpu_magics is, per room: lines, files, functions, files that only one other reads, circles of imports, and
names that several classes share; and how far a change reaches: where frameworks are named, in how many files an option
stands, how many files a commit touches. `python scripts/size.py`; tests/test_project.py reads imports by it."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tpu_magics"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COLUMNS = ("files", "lines", "code", "docstring", "comment", "blank", "one importer", "functions", "per 100 lines")


# -- imports ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One imported name. `runs_at_import`: it is at the top of the module and not only for the type checker."""

    where: str
    name: str
    runs_at_import: bool
    only_types: bool = False


def imports(path: Path, source: str | None = None) -> list[Import]:
    """All imports of a module, those by `import_module("...")` too."""
    text = path.read_text(encoding="utf-8") if source is None else source
    tree = parsed(path) if source is None else ast.parse(source)
    where = path.relative_to(ROOT).as_posix()
    by_call = "import_module" in text or "__import__" in text
    return [
        Import(f"{where}:{node.lineno}", name, at_import, only_types)
        for node, at_import, only_types in _nodes(tree, by_call)
        for name in _names(node, path)
    ]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _nodes(tree: ast.AST, expressions: bool) -> Iterator[tuple[Any, bool, bool]]:
    """Every node below, with or without `expressions`; whether it runs when the module is imported; whether only the
    type checker reads it."""
    waiting = [(tree, True, False)]
    while waiting:
        node, at_import, types = waiting.pop()
        for_types = node.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) else ()
        for child in ast.iter_child_nodes(node):
            if not expressions and isinstance(child, ast.expr):
                continue
            only_types = types or child in for_types
            runs = at_import and not only_types and not isinstance(child, FUNCTIONS)
            waiting.append((child, runs, only_types))
            yield child, runs, only_types


def _names(node: ast.AST, path: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = path.relative_to(ROOT).with_suffix("").parts
        base = ".".join([*parts[: len(parts) - node.level], *([node.module] if node.module else [])])
        base = base if node.level else str(node.module)
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def imported_modules(paths: list[Path]) -> dict[str, set[str]]:
    """Module -> the modules among `paths` that it imports, in functions too; not those for the type checker alone, nor
    the package itself, which is there before any of them."""
    modules = {dotted(path): path for path in paths}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = [each.name for each in imports(path) if not each.only_types]
        found[module] = {_module_of(name, modules) for name in names} - {module, PACKAGE.name, ""}
    return found


def _module_of(name: str, modules: dict[str, Path]) -> str:
    return next((each for each in (name, name.rpartition(".")[0]) if each in modules), "")


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def circles(imported: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, in however many steps; the largest first."""
    reached = {module: _reached(module, imported) for module in imported}
    sets = {frozenset(other for other in reached[module] if module in reached[other]) for module in imported}
    return sorted((sorted(each) for each in sets if each), key=lambda each: (-len(each), each))


def _reached(module: str, imported: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(imported[module])
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += imported[each]
    return found


# -- lines and functions ----------------------------------------------------------------------------------------------


def lines(path: Path) -> Counter[str]:
    """How many lines are `code`, `docstring`, `comment` or `blank`, and how many `functions` there are."""
    text = path.read_text(encoding="utf-8")
    kinds = ["code"] * len(text.splitlines())
    for number, line in enumerate(text.splitlines()):
        if not line.strip():
            kinds[number] = "blank"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            kinds[token.start[0] - 1] = "comment"
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            kinds[first.lineno - 1 : first.end_lineno] = ["docstring"] * (first.end_lineno - first.lineno + 1)  # type: ignore[operator]
    return Counter([*kinds, *("functions" for _ in functions(path))])


def functions(path: Path) -> list[int]:
    """The lines of each function, its decorators and docstring not counted."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            found.append(1 + int(body[-1].end_lineno or 0) - body[0].lineno + 1)
    return found


def shared_names(paths: list[Path]) -> dict[str, list[str]]:
    """The name of a class -> where it is defined, of those that several modules define."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno}")
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "."


# -- how far a change reaches -----------------------------------------------------------------------------------------

FRAMEWORKS = frozenset({"torch_xla", "torch_tpu", "tensorflow", "keras", "jax"})
CONSTANTS = frozenset({"TORCH", "TORCH_XLA", "TORCH_TPU", "TENSORFLOW", "TensorFlow", "TorchXla", "TorchTpu"})
_PINNED = re.compile(r"\b(?:torch|torch_xla|torch_tpu|accelerate|transformers|Lightning|TensorFlow|Keras|jax) \d+\.\d+")


def framework_lines(paths: list[Path]) -> dict[str, int]:
    """The files outside of backends/ and check/ with lines of code that name a framework -> how many lines."""
    found: dict[str, int] = {}
    for path in paths:
        if room(path) in ("backends", "check"):
            continue
        named = {getattr(node, "lineno", 0) for node in ast.walk(parsed(path)) if _framework_of(node)}
        if named:
            found[path.relative_to(PACKAGE).as_posix()] = len(named)
    return found


def _framework_of(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in FRAMEWORKS
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in FRAMEWORKS | CONSTANTS


def option_files(paths: list[Path]) -> dict[str, int]:
    """Each option of a training -> in how many files its name stands."""
    classes = [node for node in parsed(PACKAGE / "launch" / "options.py").body if isinstance(node, ast.ClassDef)]
    fields = next(node for node in classes if node.name == "Options").body
    declared = [node for node in fields if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)]
    names = [node.target.id for node in declared if "option(" in ast.unparse(node.value)]  # type: ignore[union-attr]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return {name: sum(bool(re.search(rf"\b{name}\b", text)) for text in texts) for name in names}


def pins(paths: list[Path]) -> int:
    """How many lines of comments and docstrings name the version of a package that they were read in."""
    return sum(len(_PINNED.findall(path.read_text(encoding="utf-8"))) for path in paths)


def commit_files(count: int = 100) -> list[int]:
    """How many files each of the newest commits touched; empty without git."""
    command = ["git", "log", f"-{count}", "--no-merges", "--format=tformat:>", "--name-only"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [len(part.split()) for part in done.stdout.split(">") if part.split()]


# -- the report -------------------------------------------------------------------------------------------------------


def main() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    imported = imported_modules(paths)
    importers = Counter(module for others in imported.values() for module in others)
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for path in paths:
        counts = lines(path)
        counts["files"] = 1
        counts["lines"] = sum(counts[kind] for kind in ("code", "docstring", "comment", "blank"))
        counts["one importer"] = int(importers[dotted(path)] == 1 and path.name != "__init__.py")
        rooms[room(path)] += counts
        rooms["all"] += counts
    print(f"{'room':12}" + "".join(f"{column:>15}" for column in COLUMNS))
    for name, counts in sorted(rooms.items(), key=lambda each: (each[0] == "all", each[0])):
        counts["per 100 lines"] = round(100 * counts["functions"] / counts["lines"])
        print(f"{name:12}" + "".join(f"{counts[column]:15,}" for column in COLUMNS))
    lengths = [length for path in paths for length in functions(path)]
    print(
        f"\nlines of a function: median {median(lengths):g}, p90 {quantiles(lengths, n=10)[-1]:g}, max {max(lengths)}"
    )
    found = circles(imported)
    print(f"\ncircles of imports, those in functions counted: {len(found)}")
    for each in found:
        print(f"  {len(each)}: {', '.join(module.removeprefix('tpu_magics.') for module in each)}")
    named = framework_lines(paths)
    print(f"\nlines that name a framework outside of backends and check: {sum(named.values())} in {len(named)} files")
    print("  " + ", ".join(f"{name} {count}" for name, count in sorted(named.items(), key=lambda each: -each[1])))
    options = option_files(paths)
    print(f"files in which an option of a training stands: median {median(options.values()):g}, {options}")
    print(f"places that name the version of a package: {pins(paths)}")
    if commits := commit_files():
        print(f"files of a commit: median {median(commits):g}, p90 {quantiles(commits, n=10)[-1]:g}")
    shared = shared_names(paths)
    print(f"\nnames that several classes have: {len(shared)}")
    for name, where in shared.items():
        print(f"  {name}: {', '.join(where)}")


if __name__ == "__main__":
    main()
