"""The commands that get a slice of TPUs with Ray on it, as text to copy: gcloud, xpk, SkyPilot, KubeRay.

What lives here: the texts, for each kind of slice. What does not: running any of them; nothing here does.

Flags and names as their makers document them: gcloud's `compute tpus queued-resources` (cloud.google.com/tpu/docs/
queued-resources), GKE's node pools, accelerators and machine types (cloud.google.com/kubernetes-engine/docs/concepts/
plan-tpus), xpk's `cluster create-ray` (AI-Hypercomputer/xpk, docs/usage/clusters.md), SkyPilot's YAML
(docs.skypilot.co, reference/yaml-spec), KubeRay's sample of a slice with several hosts (ray-operator/config/samples).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from textwrap import dedent, indent

from tpu_magics.launch.pods.address import CLIENT_PORT, GCS_PORT
from tpu_magics.launch.pods.slices import Slice

INSTALL = "pip install 'tpu-magics[torch,pods]' 'torch_xla[tpu]==2.9.0'"
RAY = "2.60.0"  # what the tests run with; the same version is needed everywhere


@dataclass(frozen=True)
class Offer:
    """How a generation is offered. `runtime`: the software of a TPU VM ("" where there are none); `accelerator` and
    `machine`: of GKE's node pools, `machine` without its number of chips ("" where GKE has none)."""

    runtime: str
    accelerator: str
    machine: str


OFFERS: Mapping[str, Offer] = {
    "v2": Offer("tpu-ubuntu2204-base", "", ""),
    "v3": Offer("tpu-ubuntu2204-base", "tpu-v3-slice", "ct3p-hightpu"),
    "v4": Offer("tpu-ubuntu2204-base", "tpu-v4-podslice", "ct4p-hightpu"),
    "v5e": Offer("v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice", "ct5lp-hightpu"),
    "v5p": Offer("v2-alpha-tpuv5", "tpu-v5p-slice", "ct5p-hightpu"),
    "v6e": Offer("v2-alpha-tpuv6e", "tpu-v6e-slice", "ct6e-standard"),
    "7x": Offer("", "tpu7x", "tpu7x-standard"),
}


def commands(wanted: Slice) -> dict[str, str]:
    """Tool -> what to type. A tool that does not offer the generation says so."""
    offer = OFFERS[wanted.generation.name]
    return {tool: dedent(text(wanted, offer)).strip() for tool, text in _TEXTS.items()}


def title(wanted: Slice) -> str:
    return f"How to get a {wanted.name} with Ray on it. Text to copy: names in CAPITALS are yours; nothing was run."


def commands_text(wanted: Slice) -> str:
    """All of them below each other; lines are left as they are, so that they can be copied."""
    parts = (f"{tool}:\n{indent(text, '    ')}" for tool, text in commands(wanted).items())
    return "\n\n".join([title(wanted), *parts])


def commands_html(wanted: Slice) -> str:
    """The same, each tool's folded away until it is asked for."""
    style = "white-space:pre;overflow-x:auto;margin:.3em 0 .8em 1em;color:inherit;background:transparent"
    parts = (
        f"<details><summary>{escape(tool)}</summary><pre style='{style}'>{escape(text)}</pre></details>"
        for tool, text in commands(wanted).items()
    )
    return f"<div style='margin-top:.8em'><div>{escape(title(wanted))}</div>{''.join(parts)}</div>"


def _gcloud(wanted: Slice, offer: Offer) -> str:
    if not offer.runtime:
        return f"{wanted.generation.name} is offered through GKE only: see KubeRay."
    return f"""
    gcloud compute tpus queued-resources create MY-REQUEST --node-id MY-SLICE --zone ZONE \\
        --accelerator-type {wanted.name} --runtime-version {offer.runtime}
    gcloud compute tpus tpu-vm ssh MY-SLICE --zone ZONE --worker=all --command="{INSTALL}"
    HEAD=$(gcloud compute tpus tpu-vm describe MY-SLICE --zone ZONE --format="value(networkEndpoints[0].ipAddress)")
    gcloud compute tpus tpu-vm ssh MY-SLICE --zone ZONE --worker=0 --command="ray start --head --port={GCS_PORT}"
    gcloud compute tpus tpu-vm ssh MY-SLICE --zone ZONE --worker={_others(wanted)} \\
        --command="ray start --address=$HEAD:{GCS_PORT}"
    # in a notebook on worker 0:  %tpu_init --hosts ray --target {wanted.name}
    """


def _others(wanted: Slice) -> str:
    """All hosts but the first, as gcloud's --worker takes them."""
    return ",".join(map(str, range(1, wanted.hosts))) if wanted.hosts < 6 else f"1,2,...,{wanted.hosts - 1}"


def _xpk(wanted: Slice, offer: Offer) -> str:
    if not offer.machine:
        return f"xpk works on GKE, which has no {wanted.generation.name}."
    return f"""
    xpk cluster create-ray --cluster MY-CLUSTER --project PROJECT --zone ZONE \\
        --ray-version={RAY} --tpu-type={wanted.name} --num-slices=1 --on-demand
    kubectl port-forward service/RAYCLUSTER-HEAD-SVC {CLIENT_PORT}:{CLIENT_PORT}
    # in a notebook there:  %tpu_init --hosts ray://localhost:{CLIENT_PORT} --target {wanted.name}
    """


def _skypilot(wanted: Slice, offer: Offer) -> str:
    if not offer.runtime:
        return f"SkyPilot starts TPU VMs, which {wanted.generation.name} is not offered as: see KubeRay."
    return f"""
    # slice.yaml
    resources:
      infra: gcp
      accelerators: tpu-{wanted.name}
      accelerator_args: {{runtime_version: {offer.runtime}}}
    setup: {INSTALL}
    run: |
      HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
      if [ "$SKYPILOT_NODE_RANK" = 0 ]; then ray start --head --port={GCS_PORT}
      else sleep 20; ray start --address=$HEAD:{GCS_PORT}; fi
    # then:
    sky launch -c MY-SLICE slice.yaml
    ssh -L {CLIENT_PORT}:localhost:{CLIENT_PORT} MY-SLICE
    # in a notebook here:  %tpu_init --hosts ray://localhost:{CLIENT_PORT} --target {wanted.name}
    """


def _kuberay(wanted: Slice, offer: Offer) -> str:
    if not offer.machine:
        return f"GKE has no {wanted.generation.name}."
    return f"""
    gcloud container clusters create MY-CLUSTER --location ZONE --addons=RayOperator
    gcloud container node-pools create MY-SLICE --cluster MY-CLUSTER --location ZONE \\
        --machine-type={offer.machine}-{wanted.chips}t --tpu-topology={wanted.topology} --num-nodes={wanted.hosts}
    # raycluster.yaml: a worker group of this kind, beside a headGroupSpec
    workerGroupSpecs:
    - groupName: tpu
      replicas: 1
      numOfHosts: {wanted.hosts}
      template:
        spec:
          nodeSelector:
            cloud.google.com/gke-tpu-accelerator: {offer.accelerator}
            cloud.google.com/gke-tpu-topology: {wanted.topology}
          containers:
          - name: ray-worker
            image: IMAGE  # with Ray {RAY}, tpu-magics and torch_xla[tpu]
            resources: {{limits: {{google.com/tpu: "{wanted.chips}"}}, requests: {{google.com/tpu: "{wanted.chips}"}}}}
    # then:
    kubectl apply -f raycluster.yaml
    kubectl port-forward service/RAYCLUSTER-HEAD-SVC {CLIENT_PORT}:{CLIENT_PORT}
    # in a notebook there:  %tpu_init --hosts ray://localhost:{CLIENT_PORT} --target {wanted.name}
    """


_TEXTS: Mapping[str, Callable[[Slice, Offer], str]] = {
    "gcloud": _gcloud,
    "xpk": _xpk,
    "SkyPilot": _skypilot,
    "KubeRay": _kuberay,
}
