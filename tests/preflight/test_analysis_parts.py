"""The arithmetic of layouts, convolutions, loops and places: pure functions, without a compiler."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from tpu_magics.backends.hlo.text import HloModule, Instruction, parse_module
from tpu_magics.preflight.analysis import find, refused
from tpu_magics.preflight.analysis.buffers import hbm_pieces, read_assignment
from tpu_magics.preflight.analysis.execution_counts import trip_count
from tpu_magics.preflight.analysis.instructions import ArrayShape, array_shapes, op_name, read_frame_tables, shares
from tpu_magics.preflight.analysis.multiplications import KernelProduct, flops, kernel_products, multiplications
from tpu_magics.preflight.analysis.op_costs import op_costs
from tpu_magics.preflight.analysis.traffic import HbmTraffic
from tpu_magics.preflight.compile_result import CollectiveTransfer, OpCost, SourceLine

# -- layouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "plain", "padded"),
    [
        ("f32[1000,3000]{1,0:T(8,128)}", 4 * 1000 * 3000, 4 * 1000 * 3072),
        ("f32[500,1000]{0,1:T(8,128)}", 4 * 500 * 1000, 4 * 512 * 1000),
        ("bf16[100,768]{1,0:T(8,128)(2,1)}", 2 * 100 * 768, 2 * 104 * 768),
        ("s8[5,33]{1,0:T(8,128)(4,1)S(1)}", 5 * 33, 8 * 128),
        ("f32[7]{0:T(128)}", 28, 512),
        ("s32[]{:T(128)}", 4, 512),
        ("pred[]{:T(512)}", 1, 512),
        ("bf16[17]{0:T(256)(128)(2,1)}", 34, 512),
        ("f32[2,7,1000]{2,0,1:T(2,128)}", 4 * 14000, 4 * 2 * 7 * 1024),
        ("c64[64,64]{1,0:T(8,128)}", 8 * 64 * 64, 8 * 64 * 128),
        ("s4[64,100]{1,0:T(8,128)E(4)}", 3200, 64 * 64),
        ("f32[3,5]", 60, 60),
        ("f32[0,5]{1,0:T(8,128)}", 0, 0),
        ("token[]", 0, 0),
    ],
)
def test_a_tensor_takes_what_its_layout_says(type_: str, plain: int, padded: int) -> None:
    (tensor,) = array_shapes(type_)
    assert (tensor.plain, tensor.padded) == (plain, padded)


def test_a_type_is_read_with_its_memory_space_and_layout() -> None:
    assert array_shapes("(f32[2,3]{1,0:T(2,128)S(1)}, /*index=1*/u32[]{:S(2)})") == (
        ArrayShape("f32", (2, 3), (1, 0), ((2, 128),), 1, "{1,0:T(2,128)S(1)}"),
        ArrayShape("u32", (), (), (), 2, "{:S(2)}"),
    )
    assert array_shapes("f32[<=8,?]{1,0}")[0].dims == (8, 0)
    assert array_shapes("no type") == ()


def test_dimensions_share_what_a_tensor_wastes() -> None:
    (tensor,) = array_shapes("f32[100,100]{1,0:T(8,128)}")
    found = shares(tensor)
    assert [one[:2] for one in found] == [(100, 128), (100, 104)]
    assert sum(one[2] for one in found) == pytest.approx(tensor.padded - tensor.plain, abs=2)
    assert shares(array_shapes("f32[16,128]{1,0:T(8,128)}")[0]) == ()


# -- FLOPs ----------------------------------------------------------------------------------------------------------


def _instruction(tail: str, opcode: str = "convolution") -> Instruction:
    return Instruction("it", "", opcode, f"%a, %b), {tail}")


def _counted(input_: int, kernel: int, result: int, stride: int, low: int, dilation: int, holes: int) -> int:
    """Every pair of a kernel and a result position, tried."""
    places = (n * stride - low + k * holes for k, n in product(range(kernel), range(result)))
    return sum(place % dilation == 0 and 0 <= place // dilation < input_ for place in places)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("low", [-1, 0, 2])
@pytest.mark.parametrize("dilation", [1, 2, 4])
@pytest.mark.parametrize("holes", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 8])
def test_valid_positions_of_a_window_are_those_that_can_be_counted(
    stride: int, low: int, dilation: int, holes: int, kernel: int
) -> None:
    window = f"window={{size={kernel} stride={stride} pad={low}_1 lhs_dilate={dilation} rhs_dilate={holes}}}"
    one = _instruction(f"{window}, dim_labels=b0f_0io->b0f")
    for input_, result in ((1, 1), (7, 5), (16, 16), (5, 40)):
        sides = (array_shapes(type_)[0] for type_ in (f"f32[2,{input_},3]", f"f32[{kernel},3,4]", f"f32[2,{result},4]"))
        positions = _counted(input_, kernel, result, stride, low, dilation, holes)
        assert flops(one, *sides) == 2 * 2 * 3 * 4 * positions


def test_groups_divide_the_features() -> None:
    sides = [array_shapes(type_)[0] for type_ in ("f32[8,64,32,32]", "f32[64,1,1,1]", "f32[8,64,32,32]")]
    one = _instruction("window={size=1x1}, dim_labels=bf01_oi01->bf01, feature_group_count=64")
    assert flops(one, *sides) == 2 * 8 * 64 * 32 * 32


def test_a_dot_has_two_flops_for_each_product() -> None:
    sides = [array_shapes(type_)[0] for type_ in ("f32[4,5,7]", "f32[4,7,6]", "f32[4,5,6]")]
    one = _instruction("lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}", "dot")
    assert flops(one, *sides) == 2 * 4 * 5 * 7 * 6


def test_multiplications_of_a_kernel_in_the_text() -> None:
    body = """module {
  func.func @main(%arg0: i32) attributes {iteration_bounds = array<i64: 8, 12, 1, 1>, scratch_operands = 2 : i64} {
    %27 = tpu.matmul %25, %24, %26 {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], \
[], []>} : vector<128x256xbf16>, vector<256x64xf32>, vector<128x64xf32> -> vector<128x64xf32>
"""
    config = 'custom_call_target="tpu_custom_call", backend_config={"body":"%s"}'
    call = _instruction(config % base64.b64encode(body.encode()).decode(), "custom-call")
    assert kernel_products(call) == (KernelProduct(("bf16", "f32"), 8 * 12 * 2 * 128 * 256 * 64.0),)
    binary = base64.b64encode(b"ML\xefR").decode()
    assert kernel_products(_instruction(config % binary, "custom-call")) is None


def test_flops_in_kernels_are_told_apart() -> None:
    """XLA's own count leaves them out."""
    body = """module {
    %1 = tpu.matmul %a, %b, %c {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], \
[], []>} : vector<8x16xf32>, vector<16x32xf32>, vector<8x32xf32> -> vector<8x32xf32>
"""
    text = PALLAS.replace("TUzvUg==", base64.b64encode(body.encode()).decode())
    both = text.replace(
        "  ROOT", "  %y = f32[8,8] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n  ROOT"
    )
    found = multiplications(_parsed(both), None).multiplications
    assert found.kernels == 2 * 8 * 16 * 32 and sum(found.flops.values()) == found.kernels + 2 * 8 * 8 * 128


PALLAS = """HloModule jit_f

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %k.1 = f32[8,128]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call", \
metadata={op_name="flash"}, backend_config={"body":"TUzvUg=="}
}
"""


def test_a_kernel_that_cannot_be_read_is_told() -> None:
    found = multiplications(parse_module(PALLAS.splitlines(keepends=True)), None)
    assert found.multiplications.flops == {} and "kernel flash" in found.notes[0]


# -- loops ----------------------------------------------------------------------------------------------------------

LOOP = """HloModule jit_f

%body (p: (s32[], s32[])) -> (s32[], s32[]) {{
  %p = (s32[]{{:T(128)}}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] get-tuple-element(%p), index=1
  %c = s32[] copy(%i), control-predecessors={{%n}}
  %step = s32[] constant({step})
  %next = s32[] add(%c, %step), control-predecessors={{%c}}
  ROOT %r = (s32[], s32[]) tuple(%next, %n)
}}

%less (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %compared = pred[] compare(%a, %b), direction={direction}
}}

%condition (q: (s32[], s32[])) -> pred[] {{
  %q = (s32[], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %m = s32[] get-tuple-element(%q), index=1
  ROOT %yes = pred[] fusion(%j, %m), kind=kLoop, calls=%less
}}

ENTRY %main () -> (s32[], s32[]) {{
  %start = s32[] constant({start})
  %end = s32[] constant({end})
  %t = (s32[], s32[]) tuple(%start, %end)
  ROOT %while.1 = (s32[], s32[]) while(%t), condition=%condition, body=%body{note}
}}
"""


@pytest.mark.parametrize(
    ("start", "end", "step", "direction", "rounds"),
    [
        (0, 10, 1, "LT", 10),
        (0, 10, 3, "LT", 4),
        (0, 10, 1, "LE", 11),
        (12, 3, -2, "GT", 5),
        (12, 3, -3, "GE", 4),
        (0, 10, 5, "NE", 2),
        (5, 5, 1, "LT", 0),
        (0, 10, -1, "LT", None),
        (0, 10, 3, "NE", None),
        (0, 10, 0, "LT", None),
    ],
)
def test_rounds_of_a_loop_follow_from_its_counter(
    start: int, end: int, step: int, direction: str, rounds: int | None
) -> None:
    program = _parsed(LOOP.format(start=start, end=end, step=step, direction=direction, note=""))
    assert _trips(program) == rounds


def test_a_noted_count_is_taken() -> None:
    note = ', backend_config={"known_trip_count":{"n":"7"}}'
    assert _trips(_parsed(LOOP.format(start=0, end=1, step=0, direction="LT", note=note))) == 7


def _parsed(text: str) -> HloModule:
    return parse_module(text.splitlines(keepends=True))


def _trips(program: HloModule) -> int | None:
    main = program.computations[program.entry]
    return trip_count(program, main, main.instructions["while.1"])


BRANCHES = """HloModule jit_f

%light (p: f32[4,4]) -> f32[4,4] {
  ROOT %p = f32[4,4] parameter(0)
}

%heavy (q: f32[4,4]) -> f32[4,4] {
  %q = f32[4,4] parameter(0)
  ROOT %m = f32[4,4] dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[4,4], b: s32[]) -> f32[4,4] {
  %x = f32[4,4] parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = f32[4,4] conditional(%b, %x, %x), branch_computations={%light, %heavy}
}
"""


def test_branches_and_loops_of_unknown_rounds_are_guesses() -> None:
    """The heaviest branch counts, and an execution may take another one."""
    found = multiplications(_parsed(BRANCHES), None)
    assert found.multiplications.flops == {"f32": 2 * 4**3} and found.executions.guessed and not found.loops
    unknown = multiplications(_parsed(LOOP.format(start=0, end=10, step=0, direction="LT", note="")), None)
    known = multiplications(_parsed(LOOP.format(start=0, end=10, step=1, direction="LT", note="")), None)
    assert unknown.executions.guessed and not known.executions.guessed


# -- costs of operations ----------------------------------------------------------------------------------------------


def _costs(text: str, estimates: Mapping[str, int] | None = None) -> tuple[OpCost, ...]:
    program = _parsed(text)
    return op_costs(program, multiplications(program, None), HbmTraffic(program), estimates or {})


def test_operations_of_a_loop_stand_where_it_runs() -> None:
    text = LOOP.format(start=0, end=10, step=1, direction="LT", note="")
    text = text.replace("  %t = ", "  %before = s32[] copy(%end)\n  %t = ").replace("  ROOT %while.1", "  %while.1")
    text = text.replace("body=%body\n", "body=%body\n  ROOT %after = (s32[], s32[]) copy(%while.1)\n")
    found = _costs(text)
    assert [one.name for one in found] == ["before", "yes", "c", "next", "after"]
    assert [one.runs for one in found] == [1, 10, 10, 10, 1]


def test_operations_without_names_are_read_once_each() -> None:
    """Each is made of the eight before it: there are 8 ** 8 ways of eight steps."""
    lines = [f"  %a{nth} = f32[8] parameter({nth})" for nth in range(8)]
    used = [", ".join(f"%a{before}" for before in range(nth - 8, nth)) for nth in range(8, 100)]
    lines += [f"  %a{nth} = f32[8] add({names})" for nth, names in enumerate(used, start=8)]
    found = _costs("\n".join(["HloModule jit_f", "", "ENTRY %main () -> f32[8] {", *lines, "}", ""]))
    assert len(found) == len(used) and all(one.ops == () for one in found)


# As libtpu 0.0.52 writes a transfer that goes on while a matrix multiplication runs.
GATHERING = """HloModule jit_f, is_scheduled=true, num_partitions=8

%starting (x: bf16[16,128]) -> (bf16[16,128], bf16[128,128]) {
  %x = bf16[16,128] parameter(0)
  %g.1 = bf16[128,128] all-gather(%x), channel_id=8, GROUPS, dimensions={0}, backend_config=FUSED
  ROOT %s = (bf16[16,128], bf16[128,128]) custom-call(%g.1), custom_call_target="AsyncCollectiveStart"
}

%going_on (y: bf16[16,128], z: bf16[128,128], a: f32[8,128], b: f32[128,128]) -> (f32[8,128], bf16[128,128]) {
  %y = bf16[16,128] parameter(0)
  %z = bf16[128,128] parameter(1)
  %a = f32[8,128] parameter(2)
  %b = f32[128,128] parameter(3)
  %product = f32[8,128] convolution(%a, %b), dim_labels=bf_io->bf
  %g.2 = bf16[128,128] all-gather(%y), channel_id=8, GROUPS, dimensions={0}, backend_config=FUSED
  ROOT %r = (f32[8,128], bf16[128,128]) custom-call(%product, %z, %g.2), custom_call_target="AsyncCollectiveContinue"
}

%ending (v: bf16[16,128], w: bf16[128,128]) -> bf16[128,128] {
  %v = bf16[16,128] parameter(0)
  %w = bf16[128,128] parameter(1)
  %g.3 = bf16[128,128] all-gather(%v), channel_id=8, GROUPS, dimensions={0}, backend_config=FUSED
  ROOT %e = bf16[128,128] custom-call(%v, %w, %g.3), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (p: bf16[16,128], m: f32[8,128], n: f32[128,128]) -> (f32[8,128], bf16[128,128]) {
  %p = bf16[16,128] parameter(0)
  %m = f32[8,128] parameter(1)
  %n = f32[128,128] parameter(2)
  %start = (bf16[16,128], bf16[128,128]) fusion(%p), kind=kCustom, calls=%starting
  %y0 = bf16[16,128] get-tuple-element(%start), index=0
  %z0 = bf16[128,128] get-tuple-element(%start), index=1
  %both = (f32[8,128], bf16[128,128]) fusion(%y0, %z0, %m, %n), kind=kCustom, calls=%going_on
  %f = f32[8,128] get-tuple-element(%both), index=0
  %z1 = bf16[128,128] get-tuple-element(%both), index=1
  %end = bf16[128,128] fusion(%y0, %z1), kind=kCustom, calls=%ending
  ROOT %out = (f32[8,128], bf16[128,128]) tuple(%f, %end)
}
""".replace("FUSED", '{"async_collective_fusion_config":{"flag_start":"-1"}}')
GROUPS = "replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}"


def test_a_transfer_in_several_fusions_counts_once_and_hides_behind_what_they_compute() -> None:
    start, both, end = _costs(GATHERING.replace("GROUPS", GROUPS), {"both": 5000})
    assert [one.kind for one in (start, both, end)] == ["collective", "matmul", "collective"]
    assert start.transfer == CollectiveTransfer(4, 2, 3 / 4 * 2 * 128 * 128, 5000.0)
    assert both.transfer is None and end.transfer is None
    assert both.cycles == 5000 and both.flops == 2 * 8 * 128 * 128


def test_what_the_end_of_a_transfer_computes_is_no_part_of_the_transfer() -> None:
    text = GATHERING.replace("GROUPS", GROUPS).replace(
        "  ROOT %e = bf16[128,128] custom-call(%v, %w, %g.3)",
        "  %twice = bf16[128,128] add(%w, %w)\n  ROOT %e = bf16[128,128] custom-call(%v, %twice, %g.3)",
    )
    assert [one.kind for one in _costs(text)] == ["collective", "matmul", "elementwise"]


# -- places ---------------------------------------------------------------------------------------------------------

TABLES = """HloModule jit_step, is_scheduled=true

FileNames
1 "/home/me/.venv/lib/python3.11/site-packages/torch/nn/functional.py"
2 "/tmp/ipykernel_123/456.py"

FunctionNames
1 "forward"
2 "train"

FileLocations
1 {file_name_id=1 function_name_id=1 line=2300 end_line=2300 column=1 end_column=9}
2 {file_name_id=2 function_name_id=2 line=12 end_line=12 column=1 end_column=9}
3 {file_name_id=2 function_name_id=2 line=40 end_line=40 column=1 end_column=9}

StackFrames
%s

ENTRY %%main (x: f32[8]) -> f32[8] {
  %%x = f32[8]{0:T(128)} parameter(0), metadata={op_name="x"}
  ROOT %%y = f32[8]{0:T(128)} negate(%%x), metadata={op_type="aten" op_name="aten__neg#3" stack_frame_id=3}
}
"""
SHIFTED = "1 {file_location_id=3 parent_frame_id=1}\n2 {file_location_id=2 parent_frame_id=2}\n"
PLAIN = "1 {file_location_id=3 parent_frame_id=0}\n2 {file_location_id=2 parent_frame_id=1}\n"


@pytest.mark.parametrize(
    "frames", [SHIFTED + "3 {file_location_id=1 parent_frame_id=3}", PLAIN + "3 {file_location_id=1 parent_frame_id=2}"]
)
def test_the_place_is_the_innermost_line_outside_of_packages(frames: str) -> None:
    program = _parsed(TABLES % frames)
    one = program.computations["main"].instructions["y"]
    assert read_frame_tables(program).of(one) == SourceLine("/tmp/ipykernel_123/456.py", 12)
    assert op_name(one) == "aten__neg#3"


def test_the_place_in_the_instruction_itself() -> None:
    places = read_frame_tables(HloModule())
    one = Instruction(
        "y", "f32[]", "negate", '%x), metadata={op_name="neg" source_file="/home/me/a b.py" source_line=7}'
    )
    assert places.of(one) == SourceLine("/home/me/a b.py", 7)
    library = one._replace(tail=one.tail.replace("/home/me", "/usr/lib/python3/dist-packages"))
    assert places.of(library) is None
    assert places.of(one._replace(tail=one.tail.replace("/home/me/a b.py", "-"))) is None
    assert places.of(one._replace(tail="%x)")) is None


# -- allocations ----------------------------------------------------------------------------------------------------

ASSIGNMENT = """BufferAssignment:
allocation 0: size 4096, page 0, parameter 1, shape |f32[8,128]| at ShapeIndex {2}, maybe-live-out:
 value: <1 p{2} @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
 value: <2 new @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
allocation 1: size 12288, preallocated-temp:
 value: <3 early @0> (size=8192,offset=0): f32[16,128]{1,0:T(8,128)}
 value: <4 late @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
 value: <5 beside{1} @0> (size=8192,offset=4096): f32[16,128]{1,0:T(8,128)}
 value: <6 beside{} @0> (size=512,offset=12288): (f32[8,128]{1,0:T(8,128)}, f32[16,128]{1,0:T(8,128)})
allocation 2: size 8192, color 1, preallocated-temp:
 value: <7 onchip @1> (size=8192,offset=0): f32[16,128]{1,0:T(8,128)S(1)}
allocation 3: size 512, constant:
 value: <8 c @0> (size=512,offset=0): f32[]{:T(128)}
"""
RANGES = """HloLiveRange (max 9):
  BufferLiveRange:
    p{2}:0-9
    early{}:1-3
    late{}:4-6
    beside{1}:5-7
    beside{}:5-7
"""


def test_what_is_held_at_the_fullest_point() -> None:
    found = hbm_pieces(read_assignment(ASSIGNMENT.splitlines(), RANGES.splitlines()))
    assert [(one.allocation.kind, one.value.name) for one in found] == [
        ("argument", "p{2}"),
        ("constant", "c"),
        ("temporary", "beside{1}"),
        ("temporary", "late"),
        ("temporary", "beside{}"),
    ]
    assert found[0].allocation.parameter == (1, (2,))


def test_without_live_ranges_values_that_share_bytes_count_once() -> None:
    found = hbm_pieces(read_assignment(ASSIGNMENT.splitlines()))
    names = [one.value.name for one in found if one.allocation.kind == "temporary"]
    assert names == ["early", "beside{}"]


# -- custom calls, files --------------------------------------------------------------------------------------------

CALLS = """HloModule jit_f

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(128)} parameter(0)
  %own = f32[8]{0:T(128)} custom-call(%x), custom_call_target="ConcatBitcast"
  %odd = f32[8]{0:T(128)} custom-call(%own), custom_call_target="my_op", metadata={op_name="aten__my#4"}
  ROOT %in = (f32[8]{0:T(128)}, token[]) infeed(%odd), metadata={op_name="feed"}
}
"""


def test_custom_calls_that_the_person_wrote_are_told() -> None:
    program, asked = _parsed(CALLS), _parsed(CALLS.replace("ConcatBitcast", "Sharding"))
    found = {one.op: one for one in refused(program, asked)}
    assert {op: one.kind for op, one in found.items()} == {"feed": "host", "my_op#4": "custom"}
    assert found["my_op#4"].text == "a custom call to my_op, which XLA does not provide"


def test_programs_of_a_folder(tmp_path: Path) -> None:
    for name in ("module_0002.jit_step.cl_1", "module_0010.jit_step_2.cl_1", "module_0003.extracted_fusion.cl_1"):
        (tmp_path / f"{name}.after_optimizations.txt").touch()
    (tmp_path / "module_0001.jit_step.cpu_after_optimizations.txt").touch()
    assert [one.stem for one in find(tmp_path, None)] == ["module_0010.jit_step_2.cl_1", "module_0002.jit_step.cl_1"]
    assert [one.stem for one in find(tmp_path, "jit_step")] == ["module_0002.jit_step.cl_1"]
    assert [one.stem for one in find(tmp_path, "module_0002.jit_step.cl_1")] == ["module_0002.jit_step.cl_1"]


def test_many_dimensions_are_split_without_losing_a_byte() -> None:
    for sizes in product((1, 3, 100), (7, 128, 130)):
        (tensor,) = array_shapes(f"bf16[{sizes[0]},{sizes[1]}]{{1,0:T(8,128)(2,1)}}")
        wasted = tensor.padded - math.prod(sizes) * 2
        assert sum(one[2] for one in shares(tensor)) == pytest.approx(wasted, abs=2)


# -- what the compiler computes again --------------------------------------------------------------------------------


def _products(*names: str) -> HloModule:
    lines = [
        f"  %{name} = f32[8,4]{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        for name in names
    ]
    head = ["  %a = f32[8,16]{1,0} parameter(0)", "  %b = f32[16,4]{1,0} parameter(1)"]
    return _parsed("\n".join(["ENTRY %main (a: f32[8,16], b: f32[16,4]) -> f32[8,4] {", *head, *lines, "}"]))


def test_what_is_computed_again_is_told() -> None:
    """The program as written has 2 * 8 * 16 * 4 FLOPs."""
    written = _products("one")
    (again,) = multiplications(_products("one", "one.remat"), written).notes
    assert "have 100 % more FLOPs than in the program as written (1024 FLOP)" in again
    assert again.endswith("the compiler recomputes values instead of keeping them, to save memory")
    (other,) = multiplications(_products("one", "two"), written).notes
    assert other.endswith("(1024 FLOP)")
    assert multiplications(written, written).notes == () == multiplications(_products("one", "two"), None).notes
