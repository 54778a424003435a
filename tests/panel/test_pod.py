"""The tables of a pod: what stands in them."""

from __future__ import annotations

import pytest

from tpu_magics.host import inspect_host
from tpu_magics.launch.pods.dry_run import DryRun, PayloadSize
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.magics.pod import PodPlan, slice_of
from tpu_magics.panel.host import host_summary, host_table
from tpu_magics.panel.pod import PAGES, outlook_table, pages_html, pages_text, pod_table, ranks_text, size
from tpu_magics.panel.table import to_html, to_text

VERSIONS = {"python": "3.11.7", "tpu_magics": "0.1.0", "torch": "2.9.0"}


def host(index: int, **more: object) -> PodHost:
    known: dict[str, object] = {"cpus": 2.0, "memory": 8_000_000_000, "versions": VERSIONS, "store": 1e9, **more}
    return PodHost(index, f"host-{index}", "ab" * 14, f"10.0.0.{index + 1}", **known)  # type: ignore[arg-type]


def pod(*hosts: PodHost, workers: int = 2) -> Pod:
    return Pod("10.0.0.1:6379", hosts, workers=workers)


def test_the_hosts_with_their_ranks() -> None:
    text = to_text(pod_table(pod(host(0, head=True), host(1, memory=None))), 120)
    assert text.startswith("tpu_magics: 2 hosts, 4 ranks (a rehearsal on XLA:CPU), Ray cluster 10.0.0.1:6379")
    first, second = (line.split("  ") for line in text.splitlines() if line.startswith("host-"))
    assert [part.strip() for part in first if part.strip()] == ["host-0 (head)", "0-1", "10.0.0.1", "2 CPUs", "7.5 GiB"]
    assert [part.strip() for part in second if part.strip()][-1] == "n/a"
    assert "On every host: Python 3.11.7, tpu_magics 0.1.0, torch 2.9.0." in text


def test_a_slice_names_its_chips() -> None:
    found = Pod("h:1", (host(0, chips=4), host(1, chips=4)), device="TPU", workers=4, replicas=2, target="v3-16")
    text = to_text(pod_table(found), 120)
    assert "(TPU v3-16)" in text and "4 TPU chips" in text
    assert [ranks_text(found, one) for one in found.hosts] == ["0-7", "8-15"]


def test_this_hosts_table_and_the_status_bar_say_where_cells_train() -> None:
    found = pod(host(0), host(1))
    text = " ".join(to_text(host_table(inspect_host(), 4, pod=found)).split())
    assert "2 hosts of the Ray cluster 10.0.0.1:6379: 4 ranks, a rehearsal on their CPUs" in text
    assert "1 worker" not in text
    assert host_summary(inspect_host(), 4, pod=found).title == "2 hosts, 4 ranks"


def test_one_of_each_is_said_in_the_singular() -> None:
    found = pod(host(0, cpus=1.0), host(1, cpus=0.5), workers=1)
    text = " ".join(to_text(outlook_table(DryRun(found, None, None), ".tpu_runs"), 120).split())
    assert "host-0 rank 0, 1 CPU, 10.0.0.1" in text
    assert "host-1 rank 1, 0.5 CPUs, 10.0.0.2" in text


def test_names_of_hosts_are_escaped() -> None:
    evil = PodHost(0, "<script>x</script>", "ab", "10.0.0.1")
    assert "<script>" not in to_html(pod_table(pod(evil)))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (812, "812 B"), (1400, "1.4 kB"), (67_141_632, "67.1 MB"), (268e6, "268 MB"), (1.5e9, "1.5 GB")],
)
def test_sizes(count: float, text: str) -> None:
    assert size(int(count)) == text


def test_what_a_run_would_send() -> None:
    outlook = DryRun(pod(host(0), host(1), host(2)), None, PayloadSize("train", 12_000, 67_000_000, 67_000_000))
    text = to_text(outlook_table(outlook, "/runs"), 120)
    assert "dry run of training train on 3 hosts" in text
    assert "12 kB: the function and its small arguments, in one bundle" in text
    assert "67 MB: models and large arrays, through Ray's object store, once for each host" in text
    assert "201 MB to 3 hosts" in text
    assert "67 MB: the trained weights of rank 0 are copied from host-0" in text
    assert "✓ ok" in text and "✗ broken" not in text


def test_what_does_not_fit_is_marked() -> None:
    small = host(1, store=1e6, memory=1_000_000)
    text = to_text(
        outlook_table(DryRun(pod(host(0), small), None, PayloadSize("f", 1, 67_000_000, 67_000_000)), "/runs"), 120
    )
    broken = [line for line in text.splitlines() if "✗ broken" in line]
    assert ["object store" in broken[0], "Memory" in broken[1]] == [True, True]
    assert "on host-1: too small" in text and "host-1 has 977 KiB free" in text


def test_without_a_function_the_sizes_are_not_available() -> None:
    assert "n/a (name the function" in to_text(outlook_table(DryRun(pod(host(0))), "/runs"))


def test_a_slice_that_nobody_has_yet() -> None:
    text = " ".join(str(PodPlan(None, slice_of("v5litepod-16"), None)).split())
    assert "v5litepod-16 (4x4): 4 hosts with 4 chips each; not there yet" in text
    assert "16: 4 workers on each host" in text


def test_the_pages_on_creating_slices_as_text_and_links() -> None:
    html = pages_html()
    assert all(f": {page}" in pages_text() and f'href="{page}"' in html for page in PAGES.values())
