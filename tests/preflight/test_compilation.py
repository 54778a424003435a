"""Graphs through the TPU's compiler: sizes, verdicts, refusals. All of it is the compiler's own, in two versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from tests.preflight import stablehlo_programs as programs
from tests.preflight.stablehlo_programs import ROW, compile_some, graph
from tpu_magics.backends.lowered import SourceLine
from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.compilation import CompileProgress
from tpu_magics.preflight.compile_process import torch_xla_flags
from tpu_magics.preflight.compile_result import CompileResult
from tpu_magics.preflight.compiler import refusals
from tpu_magics.preflight.targets import parse

pytestmark = pytest.mark.process

MIB, GIB = 2**20, 2**30
WEIGHTS, BATCH = 512 * 512 * 4, 64 * 512 * 4  # bytes of TRAINING's parameters
AVAILABLE = 16 * GIB - 258 * MIB  # of v5e, by the refusals' own table
NEAR = 32 * MIB
PLACES = {12: SourceLine("In [3]", 7), 14: SourceLine("In [3]", 9)}

# Rows whose arguments and temporaries are 20 MiB below what v5e has, and 20 MiB above.
BELOW, ABOVE = ((AVAILABLE + extra * MIB) // (2 * ROW) // 8 * 8 for extra in (-20, 20))

GRAPHS = {
    "training": graph(programs.TRAINING),
    "donated": graph(
        programs.TRAINING, donors=(0,), places=PLACES, parameters=("f32[512,512] fc.weight", "f32[64,512]")
    ),
    "replicas": graph(programs.REPLICAS, replicas=4, donors=(0,)),
    "partitions": graph(programs.PARTITIONS, partitions=4, donors=(0,)),
    "below": graph(programs.sorting(BELOW)),
    "above": graph(programs.sorting(ABOVE)),
    "outputs": graph(programs.elementwise(2 * GIB * 4 // ROW), places={3: SourceLine("In [4]", 2)}),
    "donated outputs": graph(programs.elementwise(2 * GIB * 4 // ROW), donors=(0,)),
    "far above": graph(programs.elementwise(200 * GIB // ROW)),
    "custom call": graph(programs.CUSTOM_CALL),
    "host callback": graph(programs.HOST_CALLBACK),
    "type": graph(programs.TYPE),
    "wide call": graph(programs.WIDE_CALL),
    "dynamic": graph(programs.DYNAMIC),
    "no op": graph(programs.NO_OP),
    "no donor": graph(programs.TRAINING, donors=(2,)),
    "no room": graph(programs.REPLICAS, replicas=8),
}


@dataclass(frozen=True)
class Answers:
    compiled: Mapping[str, CompileResult]
    told: list[CompileProgress]

    def __getitem__(self, name: str) -> CompileResult:
        return self.compiled[name]


@pytest.fixture(scope="module")
def answers(packages: tuple[str, ...]) -> Answers:
    """All of GRAPHS for v5e-4, by one process."""
    told: list[CompileProgress] = []
    found = compile_some(list(GRAPHS.values()), on_progress=told.append, packages=packages)
    return Answers(dict(zip(GRAPHS, found, strict=True)), told)


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_the_sizes_are_those_of_the_program(answers: Answers) -> None:
    found = answers["training"]
    assert found.status == "fits", found.error
    assert found.memory is not None
    assert (found.memory.arguments, found.memory.outputs, found.memory.aliased) == (WEIGHTS + BATCH, WEIGHTS, 0)
    assert found.memory.available == AVAILABLE


def test_needed_is_the_sum_of_its_parts(answers: Answers) -> None:
    for name in ("training", "donated", "below"):
        memory = answers[name].memory
        assert memory is not None
        parts = (memory.arguments, memory.outputs, memory.temporaries, memory.code)
        assert memory.needed == sum(one for one in parts if one is not None) - (memory.aliased or 0)


def test_a_donated_parameter_is_not_counted_twice(answers: Answers) -> None:
    kept, donated = answers["training"].memory, answers["donated"].memory
    assert kept is not None and donated is not None
    assert donated.aliased == WEIGHTS
    assert 0 <= kept.needed - donated.needed - WEIGHTS + (donated.code or 0) - (kept.code or 0) < 64 * 1024


def test_temporaries_are_those_that_the_program_needs(answers: Answers) -> None:
    memory = answers["below"].memory
    assert memory is not None
    assert memory.arguments == BELOW * ROW
    assert memory.temporaries is not None
    assert BELOW * ROW <= memory.temporaries < BELOW * ROW + MIB


def test_flops_are_at_least_those_of_the_multiplications(answers: Answers) -> None:
    found = answers["training"]
    assert found.flops is not None
    assert programs.TRAINING_FLOPS <= found.flops < 1.1 * programs.TRAINING_FLOPS
    assert found.multiplications is not None
    assert found.multiplications.flops == {"f32": programs.TRAINING_FLOPS}
    assert found.bytes_accessed is not None and found.bytes_accessed > 2 * WEIGHTS


def test_replicas_sum_their_gradients(answers: Answers) -> None:
    found = answers["replicas"]
    assert found.status == "fits", found.error
    assert found.memory is not None
    assert (found.memory.arguments, found.memory.aliased) == (WEIGHTS + BATCH, WEIGHTS)


def test_shardings_are_kept(answers: Answers) -> None:
    """A quarter of the batch for each device."""
    found = answers["partitions"]
    assert found.status == "fits", found.error
    assert found.memory is not None
    assert (found.memory.arguments, found.memory.aliased) == (WEIGHTS + BATCH // 4, WEIGHTS)


def test_seconds_peak_and_versions_are_told(answers: Answers, packages: tuple[str, ...]) -> None:
    found = answers["training"]
    assert found.seconds is not None and found.seconds > 0
    assert found.peak is not None and found.peak > 100 * MIB
    assert found.versions["libtpu"].startswith("0.0.")
    assert not packages or found.versions["libtpu"] == "0.0.21.1"
    assert set(found.versions) == {"jaxlib", "libtpu"}


# -- the same as HLO --------------------------------------------------------------------------------------------------


def test_hlo_gives_the_same_as_stablehlo(answers: Answers, packages: tuple[str, ...]) -> None:
    more = {"form": "hlo", "donors": (0,), "places": PLACES}
    same = replace(GRAPHS["donated"], module=programs.hlo(programs.TRAINING), **more)
    found = compile_some([same], packages=packages)[0]
    assert (found.memory, found.flops) == (answers["donated"].memory, answers["donated"].flops)
    assert [one.op for one in found.buffers] == [one.op for one in answers["donated"].buffers]


def test_lines_are_found_by_their_numbers(answers: Answers) -> None:
    output = next(one for one in answers["outputs"].buffers if one.kind == "output")
    assert (output.op, output.place) == ("aten__sin.1", SourceLine("In [4]", 2))


# -- the limit --------------------------------------------------------------------------------------------------------


def test_a_program_just_below_the_limit_fits(answers: Answers) -> None:
    found = answers["below"]
    assert found.status == "fits", found.error
    assert found.memory is not None and found.memory.available == AVAILABLE
    assert 0 <= AVAILABLE - found.memory.needed < NEAR


def test_a_program_just_above_the_limit_is_too_large(answers: Answers) -> None:
    found = answers["above"]
    assert found.status == "too-large", found.error
    assert found.memory is not None and found.memory.available == AVAILABLE
    assert 0 < found.memory.needed - AVAILABLE < NEAR
    assert "RESOURCE_EXHAUSTED" in found.error


def test_outputs_count(answers: Answers) -> None:
    """8 GiB in, 8 GiB out: libtpu 0.0.21.1 takes it, though it cannot run."""
    found = answers["outputs"]
    assert found.status == "too-large"
    assert found.memory is not None
    assert 16 * GIB <= found.memory.needed < 16 * GIB + NEAR
    assert bool(found.error) != any("does not count the outputs" in note for note in found.notes)
    assert answers["donated outputs"].status == "fits"


def test_far_above_the_limit_the_size_is_told(answers: Answers) -> None:
    found = answers["far above"]
    assert found.status == "too-large"
    assert found.memory is not None
    assert found.memory.needed == pytest.approx(400 * GIB, rel=0.01)
    assert found.memory.available == AVAILABLE


def test_what_is_too_large_has_its_largest_buffers(answers: Answers) -> None:
    for name, largest in (("above", ABOVE * ROW), ("far above", 200 * GIB)):
        buffers = answers[name].buffers
        assert buffers and buffers[0].size == pytest.approx(largest, rel=0.01)
        assert [one.size for one in buffers] == sorted((one.size for one in buffers), reverse=True)


def test_the_refusals_own_words_have_the_sizes_too(answers: Answers) -> None:
    """As they are needed where the compiler dumps nothing."""
    text = answers["above"].error
    memory = refusals.memory(text, None)
    assert refusals.too_large(text) and memory is not None
    assert memory.available == pytest.approx(AVAILABLE, abs=10 * MIB)  # two decimals of a GiB
    assert 0 < memory.needed - memory.available < NEAR
    if memory.arguments is not None:  # the long form
        assert memory.arguments == pytest.approx(ABOVE * ROW, rel=0.001)
        assert memory.temporaries == pytest.approx(ABOVE * ROW, rel=0.001)
        assert memory.outputs == 512
        listed = refusals.buffers(text)
        assert listed[0].kind == "temporary"
        assert listed[0].size == listed[0].plain == pytest.approx(ABOVE * ROW, rel=0.001)
        assert listed[0].shape == f"f32[{ABOVE},1024]"


def test_another_memory_than_hbm_does_not_make_it_too_large() -> None:
    text = "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 17.00M of 16.00M vmem."
    assert not refusals.too_large(text)
    assert refusals.refused(text).kind == "compiler"


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "op"), [("custom call", "my_own_kernel"), ("host callback", "xla_python_cpu_callback")]
)
def test_custom_calls_that_do_not_exist_are_refused_with_their_line(answers: Answers, name: str, op: str) -> None:
    found = answers[name]
    assert found.status == "refused"
    assert [(one.op, one.kind, str(one.place)) for one in found.refused] == [(op, "custom", "train.py:12")]
    assert f"Custom emitter for {op} not found" in found.error


@pytest.mark.parametrize(
    ("name", "op", "text"),
    [
        ("type", "the program", r"c128|C128"),
        ("wide call", "lapack_sgetrf", "rewriting is not implemented"),
        ("no op", "the program", "stablehlo.no_such_op"),
        ("dynamic", "tensor<?xf32>", "unknown at compile time"),
        ("no donor", "the program", "parameter 2 is to be donated"),
    ],
)
def test_refusals_name_what_the_compiler_names(answers: Answers, name: str, op: str, text: str) -> None:
    found = answers[name]
    assert (found.status, [one.op for one in found.refused]) == ("refused", [op])
    assert re.search(text, found.refused[0].text)
    assert found.error


def test_a_refusal_has_the_line_where_the_compiler_tells_it(answers: Answers) -> None:
    assert str(answers["wide call"].refused[0].place) == "train.py:12"


def test_more_replicas_than_devices_are_no_answer(answers: Answers) -> None:
    found = answers["no room"]
    assert (found.status, found.error) == ("failed", "The program needs 8 devices, but this TPU has 4.")


# -- other TPUs -------------------------------------------------------------------------------------------------------


def test_every_generation_is_compiled_for(packages: tuple[str, ...]) -> None:
    """As many replicas as torch_xla's launcher starts; v5e is what `answers` asks for. Of the older compiler one
    generation, with two devices to a chip."""
    for name in ["v3-8"] if packages else ["v2-8", "v3-8", "v4-8", "v5p-8", "v6e-8"]:
        is_compiled_for(name, packages)


def test_a_7x_is_compiled_for(tpu_compiler: tuple[str, ...]) -> None:
    is_compiled_for("tpu7x-8", tpu_compiler)


def is_compiled_for(name: str, packages: tuple[str, ...]) -> None:
    target = parse(name)
    count = target.ranks
    groups = f"dense<[{list(range(count))}]> : tensor<1x{count}xi64>"
    text = programs.REPLICAS.replace("dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>", groups)
    found = compile_some([graph(text, replicas=count)], target=target, packages=packages)[0]
    assert found.status == "fits", (name, found.error)
    assert found.memory is not None
    assert (found.memory.arguments, found.memory.outputs) == (WEIGHTS + BATCH, WEIGHTS)
    assert found.memory.available == target.chip.available
    assert found.flops is not None and found.flops >= 2 * 64 * 512 * 512


def test_a_topology_that_libtpu_does_not_make(packages: tuple[str, ...]) -> None:
    wrong = replace(parse("v5e-4"), bounds=(3, 5))
    with pytest.raises(TpuMagicsError, match=r"libtpu 0\.0\.\S+ does not support the topology v5e:3x5") as error:
        compile_some([GRAPHS["training"]], target=wrong, packages=packages)
    assert "3x5" in error.value.why


@pytest.mark.parametrize("name", ["v5e-1", "v3-8"])
def test_torch_xlas_flags_are_taken(packages: tuple[str, ...], name: str) -> None:
    """And its programs of attention have their scores in HBM, which libtpu's own kernel has not."""
    target = parse(name)
    asked = {"target": target, "packages": packages}
    without, with_ = (
        compile_some([graph(programs.ATTENTION)], flags=flags, **asked)[0] for flags in ((), torch_xla_flags(target))
    )
    assert (without.status, with_.status) == ("fits", "fits"), with_.error
    assert without.memory is not None and with_.memory is not None
    assert with_.memory.temporaries is not None and with_.memory.temporaries >= programs.ATTENTION_SCORES
    if name == "v5e-1":
        assert with_.memory.needed > 2 * without.memory.needed


# -- progress ---------------------------------------------------------------------------------------------------------


def test_every_graph_is_told_of_in_order(answers: Answers) -> None:
    done = [one for one in answers.told if one.state == "done"]
    assert [one.graph for one in done] == list(range(len(GRAPHS)))
    assert answers.told[0].state == "starting"
    assert {one.count for one in answers.told} == {len(GRAPHS)}
    assert all(one.resident for one in done)


@pytest.mark.parametrize(
    ("text", "op", "needed", "limit"),
    [
        (  # pytorch/xla#6611
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for %reduce-window.1 "
            "= (u32[16,8,128]{2,1,0:T(8,128)S(1)}, u32[16,8,128]{2,1,0}) reduce-window(u32[16,8,128] %bitcast.2726), "
            'metadata={op_name="aten__cumsum#7"}. Scoped allocation with size 31.07M and limit 16.00M exceeded scoped '
            "vmem limit by 15.07M. It should not be possible to run out of scoped vmem - please file a bug.",
            *("aten__cumsum#7", "31.07 MiB", "16.00 MiB"),
        ),
        (  # pytorch/xla#7962
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 29.96M "
            "of 16.00M vmem. Exceeded vmem capacity by 13.96M.",
            *("the program", "29.96 MiB", "16.00 MiB"),
        ),
    ],
)
def test_too_little_memory_on_the_chip_names_the_op_and_what_to_do(text: str, op: str, needed: str, limit: str) -> None:
    assert not refusals.too_large(text)
    found = refusals.refused(text)
    assert found.op == op and found.text.startswith(f"it needs {needed} of the memory on the chip (vmem), and may have")
    assert limit in found.text and "--xla_tpu_scoped_vmem_limit_kib" in found.text
