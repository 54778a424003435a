"""The numbers in docs/many_hosts.md for 64 and 1,024 hosts, by its own formulas, from the code and the benchmark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpu_magics.launch.pods.host_start import SILENCE_SECONDS
from tpu_magics.launch.pods.remote_supervisor import POLL_SECONDS
from tpu_magics.launch.supervisor import TICK

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = " ".join((DOCS / "many_hosts.md").read_text().split())
INSIDE, OUTSIDE = 8038, 1099  # calls a second: Ray's record that the page names
HOSTS = (64, 1024)


def row(name: str) -> list[str]:
    """The cells of a row of the page's table, without its name and its formula."""
    [found] = re.findall(
        rf"^\| {re.escape(name)}[^|]*\|[^|]*\|([^|]*)\|([^|]*)\|$", (DOCS / "many_hosts.md").read_text(), re.M
    )
    return [cell.strip() for cell in found]


def test_the_times_are_those_of_the_code() -> None:
    assert f"else after {POLL_SECONDS:g} s, and is polled again after {TICK:g} s" in TEXT
    assert f"a host counts as lost after {SILENCE_SECONDS:g} s" in TEXT
    assert f"{INSIDE:,} calls a second" in TEXT and f"(`ray://`) {OUTSIDE:,} to one actor" in TEXT


@pytest.mark.parametrize(
    ("name", "seconds"), [("answers a second, all quiet", POLL_SECONDS), ("answers a second, all with", TICK)]
)
def test_answers_a_second(name: str, seconds: float) -> None:
    assert [cell.split(":")[0] for cell in row(name)] == [f"{int(hosts / seconds):,}" for hosts in HOSTS]


@pytest.mark.parametrize(("name", "calls"), [("... delay", INSIDE), ("... and through", OUTSIDE)])
def test_how_late_events_are(name: str, calls: int) -> None:
    assert row(name) == [f"{max(TICK, hosts / calls):.2f} s" for hosts in HOSTS]


def test_how_many_hosts_one_process_can_ask() -> None:
    assert (
        f"fully used at {OUTSIDE * POLL_SECONDS:.0f} hosts" in TEXT
        and f"at {OUTSIDE * TICK:.0f} that all have news" in TEXT
    )
    assert f"inside at {round(INSIDE * POLL_SECONDS, -1):,.0f} and at {INSIDE * TICK:.0f}." in TEXT


def test_bytes_and_files() -> None:
    kilobytes = float(re.findall(r"bundles of ([\d.]+) kB", TEXT)[0])
    assert row("bundles of") == [f"{hosts * kilobytes / 1e3:.1f} MB" for hosts in HOSTS]
    assert f" {kilobytes:g} |" in (DOCS / "benchmarks.md").read_text().split("begin hosts")[1].split("end hosts")[0]
    assert row("the same model, stored") == ["6.4 s", "6.4 s"] and f"{1 / 0.156:.1f}" == "6.4"
    assert row("events in the run folder") == ["256 MB", "4.1 GB"] and 4 * 1024 / 1e3 == pytest.approx(4.1, abs=0.05)
    assert row("files that") == [f"{2 * 4 * hosts:,}" for hosts in HOSTS]
