"""Names of TPUs, and whether the slices and figures behind them are what the compiler has."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import lacking
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host.chips import GENERATIONS
from tpu_magics.preflight.chip_specs import CHIPS, MIB
from tpu_magics.preflight.compile_process import environment
from tpu_magics.preflight.targets import Target, known, known_lines, parse, parse_all

GIB = 2**30


def error_of(text: str) -> TpuMagicsError:
    with pytest.raises(TpuMagicsError) as caught:
        parse(text)
    return caught.value


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "topology", "chips", "devices", "ranks", "hosts"),
    [
        ("v5litepod-8", "v5litepod-8", "v5e:2x4", 8, 8, 8, 1),
        ("v5e-8", "v5litepod-8", "v5e:2x4", 8, 8, 8, 1),
        ("v5e-1", "v5litepod-1", "v5e:1x1", 1, 1, 1, 1),
        ("v5e-16", "v5litepod-16", "v5e:4x4", 16, 16, 16, 4),
        ("v6e-1", "v6e-1", "v6e:1x1", 1, 1, 1, 1),
        ("v6e-256", "v6e-256", "v6e:16x16", 256, 256, 256, 64),
        ("v2-8", "v2-8", "v2:2x2", 4, 8, 8, 1),
        ("v3-32", "v3-32", "v3:4x4", 16, 32, 32, 4),
        ("v4-8", "v4-8", "v4:2x2x1", 4, 4, 4, 1),
        ("v4-32", "v4-32", "v4:2x2x4", 16, 16, 16, 4),
        ("v5p-8", "v5p-8", "v5p:2x2x1", 4, 4, 4, 1),
        ("tpu7x-8", "tpu7x-8", "tpu7x:2x2x1", 4, 8, 4, 1),
        ("7x-8", "tpu7x-8", "tpu7x:2x2x1", 4, 8, 4, 1),
        ("v5e:2x4", "v5litepod-8", "v5e:2x4", 8, 8, 8, 1),
        ("tpu7x:2x2x2", "tpu7x-16", "tpu7x:2x2x2", 8, 16, 8, 2),
        ("v5e:1x2", "v5e:1x2", "v5e:1x2", 2, 2, 2, 1),
    ],
)
def test_a_name_stands_for_a_slice(
    text: str, name: str, topology: str, chips: int, devices: int, ranks: int, hosts: int
) -> None:
    found = parse(text)
    assert (found.name, found.topology, found.chips) == (name, topology, chips)
    assert (found.devices, found.ranks, found.hosts) == (devices, ranks, hosts)


@pytest.mark.parametrize(
    "text", ["V5E-8", " v5e - 8 ", "v5e_8", "v5litepod_8", "v5lite-8", "v5e8", "TPU v5e-8", "tpu-v5e-8", "V5E:2X4"]
)
def test_case_blanks_and_underscores_are_forgiven(text: str) -> None:
    assert parse(text).name == "v5litepod-8"


def test_every_known_name_is_read_back_by_each_of_its_names() -> None:
    for name in known():
        target = parse(name)
        assert target.name == target.accelerator_type == name
        assert parse(target.topology) is parse(f"{target.generation}-{target.number}") is target


def test_a_list_of_names_keeps_its_order_and_names_each_once() -> None:
    names = [target.name for target in parse_all("v6e-8, v5litepod-8,v5e-8 ,, v5e:2x4, v4-8")]
    assert names == ["v6e-8", "v5litepod-8", "v4-8"]
    assert parse_all(["v6e-8", "v5e-8,v4-8"]) == parse_all("v6e-8,v5e-8,v4-8")


# -- names that are none --------------------------------------------------------------------------------------------


def test_a_size_that_no_slice_has_names_the_nearest_and_all_of_its_generation() -> None:
    error = error_of("v5e-3")
    assert error.what == 'There is no slice "v5e-3".'
    assert error.why == "The number in v5e-N counts chips. The nearest: v5e-1 and v5e-4."
    assert error.details == ("v5litepod-N or v5e-N: N = 1, 4, 8, 16, 32, 64, 128, 256 chips",)


def test_a_size_says_that_it_counts_cores() -> None:
    error = error_of("v4-4")
    assert error.why == "The number in v4-N counts TensorCores, 2 in each chip. The nearest: v4-8 and v4-16."


@pytest.mark.parametrize(("text", "first"), [("v5e", "v5e-1, v5e-4, v5e-8"), ("tpu7x-", "tpu7x-8, tpu7x-16, tpu7x-32")])
def test_a_generation_alone_is_no_slice(text: str, first: str) -> None:
    error = error_of(text)
    assert error.what == f'"{text}" is a TPU generation without a size.'
    assert error.todo == f"Add the size: {first}, ..."


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    error = error_of("v5litepd-8")
    assert error.what == 'There is no TPU named "v5litepd-8".'
    assert error.why.startswith("Similar names: v5litepod-8, ")
    assert error.details == tuple(known_lines())
    assert len(error.details) == len(GENERATIONS)


def test_several_are_offered_only_where_several_are_taken() -> None:
    assert error_of("v99-3").todo == "Use one of these, e.g. --target v5e-8"
    with pytest.raises(TpuMagicsError) as raised:
        parse_all("v5e-8,v99-3")
    assert raised.value.todo == "Use one or more of these, separated by commas, e.g. --target v5e-8,v6e-8"


@pytest.mark.parametrize("text", ["a100", "NVIDIA H100 80GB", "a100-80gb", "L40S", "t4", "v100", "rtx4090", "mi300x"])
def test_a_gpu_is_called_one(text: str) -> None:
    error = error_of(text)
    assert error.what == f'"{text}" is a GPU.'
    assert "TPU compiler" in error.why


@pytest.mark.parametrize("text", ["v9-8", "cpu", "v5-8", "tpu", "8"])
def test_what_is_neither_is_not_called_a_gpu(text: str) -> None:
    assert error_of(text).what == f'There is no TPU named "{text}".'


@pytest.mark.parametrize("text", ["v5e:2x2x2", "v4:2x2", "v5e:0x4", "v5e:32x32", "v5e:8"])
def test_a_topology_that_cannot_be_names_those_that_are(text: str) -> None:
    error = error_of(text)
    assert error.what.endswith(f'cannot have the topology "{text}".')
    assert parse(text.partition(":")[0] + "-8").topology in error.details[0]


@pytest.mark.parametrize("text", ["", " , ", []])
def test_no_name_at_all(text: str | list[str]) -> None:
    with pytest.raises(TpuMagicsError, match="No target TPU was given") as caught:
        parse_all(text)
    assert caught.value.details == tuple(known_lines())


# -- figures --------------------------------------------------------------------------------------------------------


def test_every_generation_that_a_host_may_have_has_its_figures() -> None:
    assert {chip.kind for chip in CHIPS} == set(GENERATIONS)
    assert len(CHIPS) == len(GENERATIONS)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.generation)
def test_figures_of_a_device_are_a_chips_in_equal_parts_and_have_sources(chip: Any) -> None:
    assert chip.hbm == chip.kind.hbm_gib * GIB
    assert chip.device_peak_flops * chip.devices == chip.peak_flops == chip.kind.tflops * 1e12
    assert chip.device_bandwidth * chip.devices == chip.bandwidth
    assert all((chip.sources.hbm, chip.sources.peak_flops, chip.sources.bandwidth, chip.sources.available))


# -- what libtpu has ------------------------------------------------------------------------------------------------

ASK = """
import json, sys
import jax
from jax.experimental.topologies import get_topology_desc
from jax.sharding import SingleDeviceSharding
from through_client import compiled

def devices_of(target):
    return get_topology_desc(platform="tpu", topology_name=target["topology"], **target["options"]).devices

def shape(target):
    devices = devices_of(target)
    return {
        "devices": len(devices),
        "kind": devices[0].device_kind,
        "hosts": len({device.process_index for device in devices}),
        "chips": len({tuple(device.coords) for device in devices}),
        "chip_of_rank": [list(device.coords) for device in devices[:: len(devices) // target["ranks"]]],
    }

def fits(target, size):
    # Arguments of 1 GiB (larger ones are refused for another reason on some generations), and next to nothing else.
    device = devices_of(target)[0]
    sizes = [2**30] * (size // 2**30) + [size % 2**30 // 4096 * 4096]
    where = SingleDeviceSharding(device)
    arguments = [jax.ShapeDtypeStruct((one // 512, 128), "float32", sharding=where) for one in sizes if one]
    try:
        compiled(jax.jit(lambda *given: sum(one[:8] for one in given)).lower(*arguments), [device])
    except Exception as error:
        return str(error)
    return ""

job = json.load(sys.stdin)
shapes = {one["name"]: shape(one) for one in job["targets"]}
answers = {one["name"]: [fits(one, size) for size in one["sizes"]] for one in job["memory"]}
print(json.dumps({"shapes": shapes, "answers": answers}))
"""
TARGETS = [target for target in map(parse, known()) if target.chips <= 64]
SMALLEST = {chip.generation: next(one for one in TARGETS if one.chip is chip) for chip in CHIPS}
MARGIN = 32 * MIB  # 0.0.21.1 and 0.0.52 differ by 16 MiB at most


@dataclass(frozen=True)
class Libtpu:
    """What the installed libtpu says: of a target by its name."""

    shapes: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, list[str]]


@pytest.fixture(scope="module")
def libtpu(tmp_path_factory: pytest.TempPathFactory) -> Libtpu:
    """One process asks for all: topologies of any generation can be had in it."""
    if importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax") is None:
        pytest.skip("jax and libtpu are not installed (the extra tpu-magics[preflight])")
    unknown = lacking.reason("preflight/test_targets.py::test_every_second_device_of_7x")
    asked = [target for target in TARGETS if not (unknown and target.chip.generation == "7x")]
    memory = [memory_job(target) for target in SMALLEST.values() if target in asked]
    job = {"targets": [as_job(target) for target in asked], "memory": memory}
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(os.environ, tmp_path_factory.mktemp("libtpu"), [str(Path(__file__).parent)]),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Libtpu(**json.loads(done.stdout))


def as_job(target: Target) -> dict[str, Any]:
    return {"name": target.name, "topology": target.topology, "options": target.options, "ranks": target.ranks}


def memory_job(target: Target) -> dict[str, Any]:
    available = target.chip.available
    assert available is not None
    return {**as_job(target), "sizes": [available - MARGIN, available + MARGIN]}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.process
def test_libtpu_takes_the_topology_and_has_these_devices(libtpu: Libtpu, target: Target) -> None:
    found = libtpu.shapes[target.name]
    assert found["kind"] == target.chip.device_kind
    assert (found["devices"], found["chips"]) == (target.devices, target.chips)
    assert found["hosts"] == target.hosts


@pytest.mark.process
def test_every_second_device_of_7x_is_another_chip(libtpu: Libtpu) -> None:
    chips = libtpu.shapes["tpu7x-8"]["chip_of_rank"]
    assert len({tuple(chip) for chip in chips}) == len(chips) == parse("tpu7x-8").ranks


@pytest.mark.parametrize("target", SMALLEST.values(), ids=SMALLEST)
@pytest.mark.process
def test_the_compiler_allows_a_program_what_is_said_to_be_available(libtpu: Libtpu, target: Target) -> None:
    below, above = libtpu.answers[target.name]
    assert below == ""
    assert "RESOURCE_EXHAUSTED" in above and "hbm" in above.lower()
