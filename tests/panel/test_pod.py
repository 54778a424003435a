"""The tables of a pod: what stands in them, and that the commands can be copied."""

from __future__ import annotations

import shlex

import pytest

from tpu_magics.host import inspect_host
from tpu_magics.launch.pods.dry_run import DryRun, PayloadSize
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.magics.pod import PodPlan, slice_of
from tpu_magics.panel.host import host_summary, host_table
from tpu_magics.panel.pod import outlook_table, pod_table, ranks_text, size
from tpu_magics.panel.pod_commands import commands, commands_html, commands_text, offer_of
from tpu_magics.panel.table import to_html, to_text
from tpu_magics.preflight.targets import known

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


# -- the commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", known())
def test_every_slice_has_its_commands(target: str) -> None:
    wanted = slice_of(target)
    found = commands(wanted)
    assert list(found) == ["gcloud", "xpk", "SkyPilot", "KubeRay"]
    assert all(text.strip() and "None" not in text for text in found.values())
    offer = offer_of(wanted)
    assert (f"--accelerator-type {target} --runtime-version {offer.runtime}" in found["gcloud"]) is bool(offer.runtime)
    assert (f"-{wanted.chips}t --num-nodes={wanted.hosts}" in found["KubeRay"]) is bool(offer.machine)
    assert (f"--tpu-type={target} " in found["xpk"]) is offer.xpk
    assert ("ray start --address" in found["gcloud"]) is (bool(offer.runtime) and wanted.hosts > 1)


def test_the_commands_of_v5litepod_16() -> None:
    found = commands(slice_of("v5e-16"))
    assert "--accelerator-type v5litepod-16 --runtime-version v2-alpha-tpuv5-lite" in found["gcloud"]
    assert "--worker=1-3" in found["gcloud"]
    assert "xpk cluster create-ray" in found["xpk"] and "--tpu-type=v5litepod-16 --num-slices=1" in found["xpk"]
    assert "accelerators: tpu-v5litepod-16" in found["SkyPilot"]
    assert "--machine-type=ct5lp-hightpu-4t --num-nodes=4 --tpu-topology=4x4" in found["KubeRay"]
    assert "numOfHosts: 4" in found["KubeRay"]


@pytest.mark.parametrize(
    ("target", "machine", "accelerator"),
    [
        ("v3-8", "ct3-hightpu-4t", "tpu-v3-device"),
        ("v3-32", "ct3p-hightpu-4t", "tpu-v3-slice"),
        ("v4-16", "ct4p-hightpu-4t", "tpu-v4-podslice"),
        ("v5e-1", "ct5lp-hightpu-1t", "tpu-v5-lite-podslice"),
        ("v5e-8", "ct5lp-hightpu-8t", "tpu-v5-lite-podslice"),
        ("v5p-16", "ct5p-hightpu-4t", "tpu-v5p-slice"),
        ("v6e-1", "ct6e-standard-1t", "tpu-v6e-slice"),
        ("v6e-8", "ct6e-standard-8t", "tpu-v6e-slice"),
        ("v6e-16", "ct6e-standard-4t", "tpu-v6e-slice"),
        ("tpu7x-16", "tpu7x-standard-4t", "tpu7x"),
    ],
)
def test_machines_are_those_that_gke_has(target: str, machine: str, accelerator: str) -> None:
    """As xpk's and PerfKitBenchmarker's tables have them."""
    text = commands(slice_of(target))["KubeRay"]
    assert f"--machine-type={machine} " in text and f"gke-tpu-accelerator: {accelerator}\n" in text


def test_a_topology_is_told_where_there_are_several_hosts() -> None:
    """A TPU7x's by a policy."""
    assert "--tpu-topology" not in commands(slice_of("v6e-8"))["KubeRay"]
    ironwood = commands(slice_of("tpu7x-16"))["KubeRay"]
    assert "--tpu-topology" not in ironwood
    assert "--accelerator-topology=2x2x2" in ironwood and "--num-nodes=2 --placement-policy=MY-POLICY" in ironwood


def test_the_yaml_of_the_commands_is_yaml() -> None:
    """Its indentation survives, so that it can be copied."""
    yaml = pytest.importorskip("yaml")
    found = commands(slice_of("v5e-16"))
    sky = found["SkyPilot"].split("# then:")[0]
    assert yaml.safe_load(sky)["resources"]["accelerators"] == "tpu-v5litepod-16"
    cluster = yaml.safe_load(found["KubeRay"].split("# raycluster.yaml")[1].split("# then:")[0])
    assert cluster["kind"] == "RayCluster" and f"service/{cluster['metadata']['name']}-head-svc" in found["KubeRay"]
    [head] = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert {port["containerPort"] for port in head["ports"]} == {6379, 10001}
    [worker] = cluster["spec"]["workerGroupSpecs"]
    assert worker["numOfHosts"] == 4
    assert worker["template"]["spec"]["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}


@pytest.mark.parametrize("target", ["v5e-16", "v5e-8"])
def test_the_commands_of_gcloud_are_a_shells(target: str) -> None:
    """What the hosts get to run, after this machine's shell has read the lines."""
    lines = commands(slice_of(target))["gcloud"].replace("\\\n", " ").splitlines()
    sent = [word for line in lines for word in shlex.split(line, comments=True) if word.startswith("--command=")]
    assert "pip install 'tpu-magics[torch,pods]'" in sent[0]
    assert sent[1].endswith("; ray start --head --port=6379")
    assert [one.rpartition("; ")[2] for one in sent[2:]] == ["ray start --address=$HEAD:6379"] * (target == "v5e-16")


def test_the_commands_as_text_and_html() -> None:
    wanted = slice_of("v4-16")
    assert "    gcloud compute tpus queued-resources create" in commands_text(wanted)
    html = commands_html(wanted)
    assert html.count("<details>") == 4 and "--command=&quot;pip install" in html
