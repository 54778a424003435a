"""What a chip of each TPU generation can do, according to the compiler and to Google, each figure with its source.

"Google" in a source is the page of that generation in the Cloud TPU documentation ("TPU v5e", ...); "jax" is the table
in jax 0.10.2, jax/_src/pallas/mosaic/tpu_info.py. They differ by up to 14 %: the page is used where it has a figure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tpu_magics.host import chips as host_chips
from tpu_magics.host.chips import Generation

__all__ = ["CHIPS", "ChipSpec", "Sources"]

KIB, MIB, GIB = 2**10, 2**20, 2**30
GB = GHZ = 10**9
MEASURED = (
    "measured with libtpu 0.0.52: the largest program that it does not refuse, and the HBM that its refusal reserves"
)


@dataclass(frozen=True)
class Sources:
    """Where each figure of a chip is from, by the figure's name."""

    peak_flops: str
    bandwidth: str
    available: str
    hbm: str = "Google"
    ici: str = ""
    clock: str = ""


@dataclass(frozen=True)
class ChipSpec:
    """A chip of one generation; `device_...` are of one device, as libtpu's topologies have it.

    `kind`: the generation in host/chips.py; `topology`: how libtpu's topology names begin; `device_kind`: what jax
    calls a device; `devices`: in a chip; `bandwidth`: of HBM, bytes/s; `available`: HBM bytes that the compiler lets
    one program have on one device (None: not measured, `sources.available` says why); `options`: what libtpu needs for
    a topology that is like the real one, besides its name; `note`: what to know of the figures, may be ""; `ici`:
    bytes/s that it sends at most over all its links to other chips (None: not published); `clock`: of a core, Hz.
    """

    kind: Generation
    topology: str
    device_kind: str
    devices: int
    bandwidth: float
    available: int | None
    sources: Sources
    options: tuple[tuple[str, str], ...] = ()
    note: str = ""
    ici: float | None = None
    clock: float | None = None
    hbm: int = field(init=False)
    peak_flops: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hbm", self.kind.hbm_gib * GIB)
        object.__setattr__(self, "peak_flops", self.kind.tflops * 1e12)

    @property
    def generation(self) -> str:
        """ "v5e"."""
        return self.kind.name

    @property
    def prefix(self) -> str:
        """How Google's type string begins: "v5litepod"."""
        return self.kind.prefix

    @property
    def cores(self) -> int:
        """TensorCores."""
        return self.kind.cores

    @property
    def replicas(self) -> int:
        """Ranks that torch_xla's launcher starts per chip."""
        return self.kind.devices

    @property
    def device_peak_flops(self) -> float:
        """FLOP/s in bf16."""
        return self.peak_flops / self.devices

    @property
    def device_bandwidth(self) -> float:
        """Bytes/s of HBM."""
        return self.bandwidth / self.devices


# A clock that no page of Google's has follows from the peak: in each cycle, a core does 2 FLOPs for each cell of its
# matrix units, 128 x 128 (v6e, 7x: 256 x 256). By their peaks, v6e and 7x have twice the clock that is here; with
# it the compiler's estimate for the product of two 8192 x 8192 matrices is 70 and 80 % of the peak, of v3 to v5p 88 to
# 97 %.
_FROM_PEAK = "follows from the peak"

# `devices` and `device_kind`: seen with libtpu 0.0.21.1 and 0.0.52 (7x: only the later one knows it).
CHIPS = (
    ChipSpec(
        kind=host_chips.V2,
        topology="v2",
        device_kind="TPU v2",
        devices=2,
        bandwidth=716 * GB,
        clock=0.7 * GHZ,
        available=8 * GIB - 530 * MIB - 4 * KIB,
        sources=Sources(
            peak_flops="45e12 is from third parties only: Google's page has none, jax has 46e12",
            bandwidth="jax; Google's page has none",
            available=f"{MEASURED}; 0.0.21.1: the same",
            hbm='Google ("TPU types and zones": 64 GiB for the 8 cores of v2-8)',
            clock=_FROM_PEAK,
        ),
    ),
    ChipSpec(
        kind=host_chips.V3,
        topology="v3",
        device_kind="TPU v3",
        devices=2,
        bandwidth=900 * GB,
        ici=400 * GB,
        clock=0.94 * GHZ,
        available=16 * GIB - 530 * MIB - 4 * KIB,
        sources=Sources(
            peak_flops="Google; jax has 140e12",
            bandwidth="Google; jax has 825e9",
            available=f"{MEASURED}; 0.0.21.1: the same",
            ici="jax-ml.github.io/scaling-book: 4 links of 100e9; Google's page has none",
            clock=_FROM_PEAK,
        ),
    ),
    ChipSpec(
        kind=host_chips.V4,
        topology="v4",
        device_kind="TPU v4",
        devices=1,
        bandwidth=1200 * GB,
        ici=270 * GB,
        clock=1.05 * GHZ,
        available=31485 * MIB,
        # Without it a topology has two devices of one core and 15.25 GiB in each chip, which no framework uses.
        options=(("chip_config_name", "megacore"),),
        sources=Sources(
            peak_flops="Google, jax",
            bandwidth="Google; jax has 1230e9",
            available=f"{MEASURED}; 0.0.21.1: the same",
            ici="jax-ml.github.io/scaling-book: 6 links of 45e9; Google's page has none",
            clock=_FROM_PEAK,
        ),
    ),
    ChipSpec(
        kind=host_chips.V5E,
        topology="v5e",
        device_kind="TPU v5 lite",
        devices=1,
        bandwidth=819 * GB,
        ici=200 * GB,
        clock=1.5 * GHZ,
        available=16 * GIB - 258 * MIB,
        sources=Sources(
            peak_flops="Google, jax",
            bandwidth='Google; its later versions have "800 GiBps" (859e9), jax has 820e9',
            available=f"{MEASURED}; 0.0.21.1: the same",
            ici="Google: 400e9 in both directions",
            clock="jax-ml.github.io/scaling-book; follows from the peak",
        ),
    ),
    ChipSpec(
        kind=host_chips.V5P,
        topology="v5p",
        device_kind="TPU v5",
        devices=1,
        bandwidth=2765 * GB,
        ici=600 * GB,
        clock=1.75 * GHZ,
        available=96 * GIB - 279 * MIB,
        note="The compiler uses 96 GiB minus what it reserves; Google says 95 GiB.",
        sources=Sources(
            peak_flops="Google, jax",
            bandwidth="Google; jax has 2460e9",
            available=f"{MEASURED}; 0.0.21.1: 16 MiB more",
            hbm="Google; the compiler has 96 GiB",
            ici="Google: 1200e9 in both directions",
            clock=_FROM_PEAK,
        ),
    ),
    ChipSpec(
        kind=host_chips.V6E,
        topology="v6e",
        device_kind="TPU v6 lite",
        devices=1,
        bandwidth=1638 * GB,
        ici=400 * GB,
        clock=1.75 * GHZ,
        available=32256 * MIB - 264 * MIB,
        note="The compiler uses 31.5 of the 32 GiB.",
        sources=Sources(
            peak_flops="Google; jax has 920e12",
            bandwidth="Google; jax has 1640e9",
            available=f"{MEASURED}; 0.0.21.1: 4 MiB more",
            ici="Google: 800e9 in both directions",
            clock=f"{_FROM_PEAK}, halved",
        ),
    ),
    ChipSpec(
        kind=host_chips.TPU7X,
        topology="tpu7x",
        device_kind="TPU7x",
        devices=2,
        bandwidth=7380 * GB,
        ici=600 * GB,
        clock=2.2 * GHZ,
        available=95 * GIB - 268 * MIB,
        note="A chip has two devices with half of its HBM and peak each. torch_xla 2.9 starts one rank for each chip; "
        "the figures here are for one device.",
        sources=Sources(
            peak_flops="Google; jax has 2310e12",
            bandwidth="Google; jax has 7400e9",
            available=f"{MEASURED}; 0.0.21.1 does not know this generation",
            ici="Google: 1200e9 in both directions",
            clock=f"{_FROM_PEAK}, halved",
        ),
    ),
)
