"""`python -m tests.check.corpus`: the checker on public packages, and how many of its findings are true.

The packages come from PyPI into .bench/corpus, in the versions of corpus.json, which keeps what was judged by hand: of
each finding its file, its rule, a hash of its line and message, the verdict and the reason. Of each rule a part of the
findings is judged, drawn by a hash; a rule with more findings has a larger part. It fails where one of them is not
judged yet, and below the share of true ones that the checker must have. Nothing of other people's code is kept.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tpu_magics.check import check_text
from tpu_magics.check.finding import Finding

FILE = Path(__file__).with_suffix(".json")
FOLDER = Path(__file__).parents[2] / ".bench" / "corpus"
SAMPLE, SEED = 200, "2026"
WANTED = 0.95
VERDICTS = ("true", "not useful", "false")  # only the first counts for the checker


class Judged(NamedTuple):
    """What a person said of one finding."""

    path: str
    code: str
    hash: str
    verdict: str
    reason: str


def judgements() -> list[Judged]:
    return [Judged(*one) for one in json.loads(FILE.read_text(encoding="utf-8"))["judged"]]


def key(finding: Finding) -> tuple[str, str, str]:
    """The file, the rule and the hash of a finding."""
    text = f"{finding.source.strip()}|{finding.message}"
    return finding.path, finding.code, hashlib.sha256(text.encode()).hexdigest()[:12]


def sample(findings: Iterable[Finding]) -> list[Finding]:
    """About SAMPLE of them, of each rule in proportion to the root of their number, one for each key."""
    of_rule: dict[str, dict[tuple[str, str, str], Finding]] = defaultdict(dict)
    for one in findings:
        of_rule[one.code].setdefault(key(one), one)
    roots = sum(math.sqrt(len(one)) for one in of_rule.values())
    result = []
    for code in sorted(of_rule):
        drawn = sorted(of_rule[code], key=lambda one: hashlib.sha256("|".join((SEED, *one)).encode()).hexdigest())
        most = math.ceil(SAMPLE * math.sqrt(len(drawn)) / roots)
        result += [of_rule[code][one] for one in drawn[:most]]
    return result


def precision(judged: Iterable[Judged]) -> float:
    verdicts = Counter(one.verdict for one in judged)
    return verdicts["true"] / max(verdicts.total(), 1)


# -- running it -------------------------------------------------------------------------------------------------------


def install(packages: dict[str, str]) -> None:
    """Their source, without what they need: nothing of it is imported."""
    there = {one.name: one.version for one in importlib.metadata.distributions(path=[str(FOLDER)])}
    missing = [f"{name}=={version}" for name, version in packages.items() if there.get(name) != version]
    if missing:
        command = [sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--target", str(FOLDER), *missing]
        subprocess.run(command, check=True)


def check(path: Path) -> tuple[list[Finding], int, float]:
    """The findings in a file, its lines, and the CPU seconds that they took."""
    text = path.read_text(encoding="utf-8", errors="replace")
    began = time.process_time()
    findings = check_text(text, str(path.relative_to(FOLDER)))
    return list(findings), text.count("\n"), time.process_time() - began


def main(arguments: Sequence[str]) -> int:
    """Prints the precision of each rule; with `--unjudged` also each finding of the sample that has no verdict."""
    install(json.loads(FILE.read_text(encoding="utf-8"))["packages"])
    with ProcessPoolExecutor() as processes:
        results = list(processes.map(check, sorted(FOLDER.rglob("*.py")), chunksize=50))
    findings = [one for result in results for one in result[0]]
    lines, seconds = sum(result[1] for result in results), sum(result[2] for result in results)
    drawn = sample(findings)
    known = {(one.path, one.code, one.hash): one for one in judgements()}
    unjudged = [one for one in drawn if key(one) not in known]
    judged = [known[key(one)] for one in drawn if key(one) in known]
    print(f"{len(findings):,} findings in {lines:,} lines; {lines / seconds:,.0f} lines in a CPU second")
    print("rule     findings  judged  true  not useful  false")
    counts = Counter(one.code for one in findings)
    for code in sorted(counts):
        of_rule = Counter(one.verdict for one in judged if one.code == code)
        shown = "  ".join(f"{of_rule[one]:>{max(len(one), 4)}}" for one in VERDICTS)
        print(f"{code}   {counts[code]:>8,}  {of_rule.total():>6}  {shown}")
    print(f"{precision(judged):.1%} of {len(judged)} are true (at least {WANTED:.0%}); {len(unjudged)} are not judged")
    for one in unjudged if "--unjudged" in arguments else ():
        print(json.dumps([*key(one), "", ""]), f"{one.path}:{one.line} {one.message}")
    return int(bool(unjudged) or precision(judged) < WANTED)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
