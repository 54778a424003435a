"""The commands that get a slice of TPUs with Ray on it, as text to copy: gcloud, xpk, SkyPilot, KubeRay.

Nothing here runs them, and none was ever run: there was no cloud account. Their sources:

* gcloud: the reference pages of `compute tpus queued-resources create` (flags) and `tpu-vm ssh` (`--worker` takes one
  number, a list, a range "1-3", or "all"), `networkEndpoints` of the TPU API's node (v2), the page on queued resources
  (the state ACTIVE; TPU7x needs GKE). Runtimes: cloud.google.com/tpu/docs/runtimes, its table for PyTorch.
* GKE's accelerators and machine types: of v4 to 7x in xpk (src/xpk/core/system_characteristics.py, commit 367c838); of
  v3, and machines with 1 and 8 chips, in PerfKitBenchmarker (providers/gcp/google_kubernetes_engine.py, 02456ac).
  That v3 has another machine for one host: keras-team/kinetic, docs/accelerators.md. Of v2 none was found.
* xpk: docs/usage/clusters.md, src/xpk/parser/cluster.py, src/xpk/core/ray.py (the RayCluster that it makes).
* SkyPilot: docs/source/reference/tpu.rst and yaml-spec.rst, running-jobs/distributed-jobs.rst (the variables of nodes;
  its own Ray has port 6380), sky_templates/ray/start_cluster.sh (the last `sleep`). That each type of TPU is in its
  catalog was not checked: the text says where to look.
* KubeRay: its samples ray-cluster.tpu-*-multihost.yaml and `GenerateHeadServiceName` (commit feeaf72), and Ray's guide
  to TPUs on GKE (doc/source/cluster/kubernetes/user-guides/gcp-gke-tpu-cluster.md). Node pools of one host without
  `--tpu-topology`: as xpk does (core/nodepool.py). TPU7x with a workload policy in its place: GKE's page on Ironwood.

Not checked: quotas and zones, and whether images of this Ray exist.
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
    `machine`: of GKE's node pools, `machine` without its number of chips ("" where none is known); `xpk`: whether xpk
    has it."""

    runtime: str
    accelerator: str
    machine: str
    xpk: bool = True


OFFERS: Mapping[str, Offer] = {
    "v2": Offer("tpu-ubuntu2204-base", "", "", xpk=False),
    "v3": Offer("tpu-ubuntu2204-base", "tpu-v3-slice", "ct3p-hightpu", xpk=False),
    "v4": Offer("tpu-ubuntu2204-base", "tpu-v4-podslice", "ct4p-hightpu"),
    "v5e": Offer("v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice", "ct5lp-hightpu"),
    "v5p": Offer("v2-alpha-tpuv5", "tpu-v5p-slice", "ct5p-hightpu"),
    "v6e": Offer("v2-alpha-tpuv6e", "tpu-v6e-slice", "ct6e-standard"),
    "7x": Offer("", "tpu7x", "tpu7x-standard"),
}
_V3_OF_ONE_HOST = Offer("tpu-ubuntu2204-base", "tpu-v3-device", "ct3-hightpu", xpk=False)


def offer_of(wanted: Slice) -> Offer:
    """How this slice is offered: on GKE a v3 of one host is another machine."""
    name = wanted.generation.name
    return _V3_OF_ONE_HOST if name == "v3" and wanted.hosts == 1 else OFFERS[name]


def commands(wanted: Slice) -> dict[str, str]:
    """Tool -> what to type. A tool that does not offer the generation says so."""
    offer = offer_of(wanted)
    return {tool: dedent(text(wanted, offer)).strip() for tool, text in _TEXTS.items()}


def title(wanted: Slice) -> str:
    return f"How to get a {wanted.name} with Ray on it. Copy and replace the names in CAPITALS; nothing was run."


def commands_text(wanted: Slice) -> str:
    """All of them below each other; lines are left as they are, so that they can be copied."""
    parts = (f"{tool}:\n{indent(text, '    ')}" for tool, text in commands(wanted).items())
    return "\n\n".join([title(wanted), *parts])


def commands_html(wanted: Slice) -> str:
    """The same, folded for each tool."""
    style = "white-space:pre;overflow-x:auto;margin:.3em 0 .8em 1em;color:inherit;background:transparent"
    parts = (
        f"<details><summary>{escape(tool)}</summary><pre style='{style}'>{escape(text)}</pre></details>"
        for tool, text in commands(wanted).items()
    )
    return f"<div style='margin-top:.8em'><div>{escape(title(wanted))}</div>{''.join(parts)}</div>"


def _gcloud(wanted: Slice, offer: Offer) -> str:
    if not offer.runtime:
        return f"{wanted.generation.name} is offered through GKE only: see KubeRay."
    ssh = "gcloud compute tpus tpu-vm ssh MY-SLICE --zone ZONE"
    path = "export PATH=$PATH:~/.local/bin"  # where pip puts `ray` for an account that is not root
    others = f"""
    {ssh} --worker={_others(wanted)} \\
        --command='{path}; ray start --address='$HEAD:{GCS_PORT}"""
    return f"""
    gcloud compute tpus queued-resources create MY-REQUEST --node-id MY-SLICE --zone ZONE \\
        --accelerator-type {wanted.name} --runtime-version {offer.runtime}
    gcloud compute tpus queued-resources describe MY-REQUEST --zone ZONE  # continue when it says ACTIVE
    {ssh} --worker=all --command="{INSTALL}"
    HEAD=$(gcloud compute tpus tpu-vm describe MY-SLICE --zone ZONE --format="value(networkEndpoints[0].ipAddress)")
    {ssh} --worker=0 --command='{path}; ray start --head --port={GCS_PORT}'{others if wanted.hosts > 1 else ""}
    # in a notebook on worker 0:  %tpu_init --hosts ray --target {wanted.name}
    """


def _others(wanted: Slice) -> str:
    """All hosts but the first, as gcloud's --worker takes them."""
    return f"1-{wanted.hosts - 1}" if wanted.hosts > 2 else "1"


def _xpk(wanted: Slice, offer: Offer) -> str:
    if not offer.xpk:
        return f"xpk does not support {wanted.generation.name}."
    return f"""
    xpk cluster create-ray --cluster MY-CLUSTER --project PROJECT --zone ZONE \\
        --ray-version={RAY} --tpu-type={wanted.name} --num-slices=1 --on-demand
    # its pods run rayproject/ray:{RAY}: the notebook needs the same Python, and they need the packages
    for POD in $(kubectl get pods -n ray -o name); do kubectl exec -n ray $POD -- {INSTALL}; done
    kubectl port-forward -n ray service/raycluster-head-svc {CLIENT_PORT}:{CLIENT_PORT}
    # in a notebook there:  %tpu_init --hosts ray://localhost:{CLIENT_PORT} --target {wanted.name}
    """


def _skypilot(wanted: Slice, offer: Offer) -> str:
    if not offer.runtime:
        return f"SkyPilot starts TPU VMs, and {wanted.generation.name} is not offered as one: see KubeRay."
    return f"""
    # slice.yaml
    resources:
      infra: gcp
      accelerators: tpu-{wanted.name}  # those that SkyPilot knows: sky show-gpus -a
      accelerator_args: {{runtime_version: {offer.runtime}}}
    setup: {INSTALL}
    run: |
      HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
      if [ "$SKYPILOT_NODE_RANK" = 0 ]; then ray start --head --port={GCS_PORT}
      else until ray start --address=$HEAD:{GCS_PORT}; do sleep 5; done; fi
      sleep 5  # until Ray's processes stand on their own
    # then:
    sky launch -c MY-SLICE slice.yaml
    ssh -L {CLIENT_PORT}:localhost:{CLIENT_PORT} MY-SLICE
    # in a notebook here, with the same Python:  %tpu_init --hosts ray://localhost:{CLIENT_PORT} --target {wanted.name}
    """


def _kuberay(wanted: Slice, offer: Offer) -> str:
    if not offer.machine:
        return f"No machine type of GKE is known for {wanted.generation.name}."
    chips = f'{{google.com/tpu: "{wanted.chips}"}}'
    return f"""
    gcloud container clusters create MY-CLUSTER --location ZONE --addons=RayOperator --machine-type=n1-standard-16
    {_pool(wanted, offer)}
    gcloud container clusters get-credentials MY-CLUSTER --location ZONE
    # raycluster.yaml
    apiVersion: ray.io/v1
    kind: RayCluster
    metadata: {{name: my-slice}}
    spec:
      rayVersion: "{RAY}"
      headGroupSpec:
        rayStartParams: {{}}
        template:
          spec:
            containers:
            - name: ray-head
              image: IMAGE  # with Ray {RAY}, tpu-magics, torch_xla[tpu] and the notebook's Python
              ports: [{{containerPort: {GCS_PORT}, name: gcs}}, {{containerPort: {CLIENT_PORT}, name: client}}]
      workerGroupSpecs:
      - groupName: tpu
        replicas: 1
        minReplicas: 1
        maxReplicas: 1
        numOfHosts: {wanted.hosts}
        rayStartParams: {{}}
        template:
          spec:
            nodeSelector:
              cloud.google.com/gke-tpu-accelerator: {offer.accelerator}
              cloud.google.com/gke-tpu-topology: {wanted.topology}
            containers:
            - name: ray-worker
              image: IMAGE
              resources: {{limits: {chips}, requests: {chips}}}
    # then:
    kubectl apply -f raycluster.yaml
    kubectl port-forward service/my-slice-head-svc {CLIENT_PORT}:{CLIENT_PORT}
    # in a notebook there:  %tpu_init --hosts ray://localhost:{CLIENT_PORT} --target {wanted.name}
    """


def _pool(wanted: Slice, offer: Offer) -> str:
    """The node pool of the slice. Where it has several hosts, GKE has to know its topology; a TPU7x's is told by a
    policy."""
    create = f"""gcloud container node-pools create MY-SLICE --cluster MY-CLUSTER --location ZONE \\
        --machine-type={offer.machine}-{wanted.chips}t --num-nodes={wanted.hosts}"""
    if wanted.hosts == 1:
        return create
    if wanted.generation.name != "7x":
        return f"{create} --tpu-topology={wanted.topology}"
    return f"""gcloud compute resource-policies create workload-policy MY-POLICY --region REGION \\
        --type=HIGH_THROUGHPUT --accelerator-topology={wanted.topology}
    {create} --placement-policy=MY-POLICY"""


_TEXTS: Mapping[str, Callable[[Slice, Offer], str]] = {
    "gcloud": _gcloud,
    "xpk": _xpk,
    "SkyPilot": _skypilot,
    "KubeRay": _kuberay,
}
