"""The reading and comparing of graphs: texts that XLA itself writes, from programs that torch_xla runs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import forks
from tpu_magics.backends import hlo

pytestmark = pytest.mark.process

# Each program is run in a process of its own, forked from one that has imported torch_xla.
PROGRAMS = """
import contextlib, json, os, sys
from pathlib import Path

import torch
import torch_xla
import torch.nn.functional as F

folder = Path(sys.argv[1])


def ones(*shape, **options):
    return torch.ones(*shape, **options).to("xla")


def train(batch=8, model_type=torch.float32, autocast=False):
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 5)
    model = torch.nn.Sequential(*layers).to("xla").to(model_type)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(batch, 3, 8, 8).to("xla").to(model_type), torch.zeros(batch, dtype=torch.int64).to("xla")
    wide, whole = ones(3, 3, dtype=torch.float64), ones(3, 3, dtype=torch.int64)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("xla", dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        wide, whole = wide @ wide, whole @ whole
        torch_xla.sync()


def after_another():
    train(batch=2)
    train()


def values(*tensors):
    torch_xla.sync()


PROGRAMS = {
    "train": train,
    "again": after_another,
    "places": train,
    "use": train,
    "downcast": train,
    "model": lambda: train(model_type=torch.bfloat16),
    "autocast": lambda: train(autocast=True),
    "batch": lambda: train(batch=5),
    "top2": lambda: values(kept := ones(9).topk(2)),
    "top3": lambda: values(kept := ones(9).topk(3)),
    "slice4": lambda: values(kept := ones(9)[:4] * 2),
    "slice5": lambda: values(kept := ones(9)[:5] * 2),
    "item3": lambda: values(kept := (ones(9) * 2)[3]),
    "item4": lambda: values(kept := (ones(9) * 2)[4]),
    "eps5": lambda: values(kept := F.batch_norm(ones(3, 4), None, None, training=True, eps=1e-5)),
    "eps3": lambda: values(kept := F.batch_norm(ones(3, 4), None, None, training=True, eps=1e-3)),
    "count0": lambda: values(kept := ones(3) + torch.arange(3, device="xla")),
    "count1": lambda: values(kept := ones(3) + torch.arange(1, 4, device="xla")),
    "one": lambda: values(kept := [(x := ones(3)) + 1]),
    "three": lambda: values(kept := [(x := ones(3)) + 1, x * x, x / x]),
    "deep": lambda: values(kept := (ones(3).sin().cos().exp() + 1).tanh()),
    "deeper": lambda: values(kept := (ones(3).sin().cos().exp() + 1).tanh().sqrt().abs()),
    "sincos": lambda: values(kept := ones(3).sin().cos()),
    "cossin": lambda: values(kept := ones(3).cos().sin()),
    "two": lambda: values(kept := ones(3).sum() + ones(4, 4).sum()),
    "between": lambda: values(kept := ones(3).sum() + ones(4, 4).sum() + ones(2).sum()),
}
ENVIRONMENT = {
    "use": {"XLA_USE_BF16": "1"},
    "downcast": {"XLA_DOWNCAST_BF16": "1"},
    "places": {"XLA_HLO_DEBUG": "1", "XLA_IR_DEBUG": "1"},
}

for name, program in PROGRAMS.items():
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder / name} --xla_dump_hlo_as_text"
    pid = os.fork()
    if not pid:
        os.environ.update(ENVIRONMENT.get(name, {}))
        code = 1
        try:
            program()
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"{name} failed")
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """From a program's name to the text of its last graph, as XLA wrote it before optimising."""
    folder = tmp_path_factory.mktemp("graphs")
    environment = {key: value for key, value in os.environ.items() if "BF16" not in key}
    environment |= {"PJRT_DEVICE": "CPU"}
    forks.run("torch_xla", PROGRAMS, folder, cwd=folder, environment=environment)
    return {path.name: _last(path) for path in folder.iterdir()}


def _last(folder: Path) -> str:
    return max(folder.glob("*.before_optimizations.txt")).read_text()


@pytest.fixture(scope="module")
def graphs(texts: dict[str, str]) -> dict[str, hlo.Graph]:
    return {name: hlo.parse(text) for name, text in texts.items()}


def change(graphs: dict[str, hlo.Graph], old: str, new: str) -> hlo.GraphChange:
    return hlo.compare(graphs[new], graphs[old])


# -- reading ----------------------------------------------------------------------------------------------------------
def test_a_training_steps_interface(graphs: dict[str, hlo.Graph], texts: dict[str, str]) -> None:
    graph = graphs["train"]
    parameters = {str(one) for one in graph.parameters}
    assert {"f32[8,3,8,8]", "s64[8]", "f32[5,144]", "f32[4,3,3,3]", "f64[3,3]", "s64[3,3]"} <= parameters
    assert graph.donated
    donated = {str(graph.parameters[number]) for number in graph.donated}
    assert {"f32[5,144]", "f32[4,3,3,3]"} <= donated
    assert "f32[8,3,8,8]" not in donated
    assert {"f32[]", "f64[3,3]", "f32[5,144]"} <= {str(one) for one in graph.outputs}
    assert len(graph.outputs) == texts["train"].splitlines()[0].split("->")[1].count("[")
    assert hlo.dtype_counts(graph) == {"f32": len(graph.parameters) - 3, "s64": 2, "f64": 1}


def test_every_instruction_is_read(graphs: dict[str, hlo.Graph], texts: dict[str, str]) -> None:
    for name, graph in graphs.items():
        lines = [line for line in texts[name].splitlines() if " = " in line and line.startswith("  ")]
        assert len(graph.ops) == len(lines) == sum(graph.counts.values()), name


def test_an_instructions_parts(graphs: dict[str, hlo.Graph]) -> None:
    ops = graphs["train"].ops
    dot = next(op for op in ops if op.opcode == "dot" and op.result == hlo.Tensor("f32", (8, 5)))
    made = [ops[ops.index(dot) - back] for back in dot.operands]
    assert [op.opcode for op in made] == ["reshape", "transpose"]
    assert dot.attributes == "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    reduce = next(op for op in ops if op.opcode == "reduce")
    assert "to_apply=%" in reduce.attributes
    assert not any(part.rstrip("0123456789").endswith(".") for part in reduce.attributes.split())
    assert next(op for op in ops if op.opcode == "constant").value
    assert {op.value for op in ops if op.opcode == "parameter"} >= {"0", "1"}


def test_a_tuple_result_has_all_its_tensors() -> None:
    graph = hlo.parse(RANDOM)
    random = next(op for op in graph.ops if op.opcode == "rng-bit-generator")
    assert random.results == (hlo.Tensor("u64", (2,)), hlo.Tensor("u32", (2, 5)))
    assert graph.parameters == (hlo.Tensor("s64", ()),)
    assert graph.outputs == (hlo.Tensor("u32", (2, 5)),)


RANDOM = """HloModule SyncTensorsGraph.9, entry_computation_layout={(s64[])->(u32[2,5]{1,0})}

ENTRY %SyncTensorsGraph.9 (p0.1: s64[]) -> (u32[2,5]) {
  %p0.1 = s64[] parameter(0)
  %convert.2 = u64[] convert(%p0.1)
  %reshape.3 = u64[1]{0} reshape(%convert.2)
  %concatenate.4 = u64[2]{0} concatenate(%reshape.3, %reshape.3), dimensions={0}
  %rng-bit-generator.5 = (u64[2]{0}, /*index=1*/u32[2,5]{1,0}) rng-bit-generator(%concatenate.4), algorithm=rng_default
  %get-tuple-element.7 = u32[2,5]{1,0} get-tuple-element(%rng-bit-generator.5), index=1
  ROOT %tuple.8 = (u32[2,5]{1,0}) tuple(%get-tuple-element.7)
}
"""


def test_the_same_graph_has_the_same_digest_in_every_process(graphs: dict[str, hlo.Graph]) -> None:
    assert graphs["train"].digest == graphs["again"].digest
    assert graphs["train"] == graphs["again"]
    assert len({graphs[name].digest for name in ("train", "batch", "use", "downcast", "model", "autocast")}) == 6


def test_noted_source_lines_change_nothing(graphs: dict[str, hlo.Graph], texts: dict[str, str]) -> None:
    assert "metadata={" in texts["places"]
    assert graphs["places"].digest == graphs["train"].digest
    assert graphs["places"].ops == graphs["train"].ops


def test_the_modules_name_and_number_change_nothing(texts: dict[str, str]) -> None:
    renamed = texts["train"].replace("SyncTensorsGraph.", "Other.1")
    assert renamed != texts["train"]
    assert hlo.parse(renamed) == hlo.parse(texts["train"])


@pytest.mark.parametrize("text", ["", "\n", "not a module", "HloModule x\n\nENTRY", "ENTRY %x (p: f32[", "\udc80"])
def test_what_is_no_module_is_an_empty_graph(text: str) -> None:
    graph = hlo.parse(text)
    assert graph.ops == ()
    assert hlo.multiplications(graph) == (0, 0)
    assert hlo.compare(graph, graph).same_ops
    assert hlo.compare(graph, graph).lines() == ()


def test_a_module_cut_anywhere_can_be_read(texts: dict[str, str]) -> None:
    text = texts["top2"]
    for end in range(0, len(text), 7):
        hlo.compare(hlo.parse(text[:end]), hlo.parse(text)).lines()


def test_what_is_kept_of_a_graph_is_small(graphs: dict[str, hlo.Graph], texts: dict[str, str]) -> None:
    assert len(graphs["train"].packed) < len(texts["train"]) / 3


# -- counting ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "counted", "types"),
    [
        ("train", (7, 0), {"f32": 6, "f64": 1}),
        ("use", (7, 7), {"bf16": 7}),
        ("downcast", (7, 6), {"bf16": 6, "f32": 1}),
        ("model", (7, 6), {"bf16": 6, "f64": 1}),
        ("autocast", (7, 6), {"bf16": 6, "f64": 1}),
    ],
)
def test_multiplications(
    graphs: dict[str, hlo.Graph], name: str, counted: tuple[int, int], types: dict[str, int]
) -> None:
    """Three of the linear layer and three of the convolution (forward, and two backward), one of torch.double; the
    product of whole numbers is no matter of precision."""
    assert graphs[name].counts["dot"] + graphs[name].counts["convolution"] == counted[0] + 1
    assert hlo.multiplications(graphs[name]) == counted
    assert hlo.multiplied_types(graphs[name]) == types


def test_parameters_as_compiled(graphs: dict[str, hlo.Graph]) -> None:
    assert "f32" not in hlo.dtype_counts(graphs["use"])
    assert "f64" not in hlo.dtype_counts(graphs["use"])
    assert hlo.dtype_counts(graphs["downcast"])["f32"] >= 1
    assert "f64" not in hlo.dtype_counts(graphs["downcast"])
    assert "bf16" not in hlo.dtype_counts(graphs["train"])


def test_what_counts_are_the_operands() -> None:
    kept_wide = MULTIPLIED.replace("RESULT", "f32").replace("LEFT", "bf16").replace("RIGHT", "bf16")
    mixed = MULTIPLIED.replace("RESULT", "f32").replace("LEFT", "bf16").replace("RIGHT", "f32")
    assert hlo.multiplications(hlo.parse(kept_wide)) == (1, 1)
    assert hlo.multiplications(hlo.parse(mixed)) == (1, 0)
    assert hlo.multiplied_types(hlo.parse(mixed)) == {"f32": 1}


def test_a_library_call_that_multiplies_counts() -> None:
    call = 'custom-call(%a.1, %b.2), custom_call_target="__onednn$matmul", backend_config="(x)"'
    text = MULTIPLIED.replace("RESULT", "bf16").replace("LEFT", "bf16").replace("RIGHT", "bf16")
    dot = "dot(%a.1, %b.2), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    assert hlo.multiplications(hlo.parse(text.replace(dot, call))) == (1, 1)
    assert hlo.multiplications(hlo.parse(text.replace(dot, call.replace("matmul", "topk")))) == (0, 0)


MULTIPLIED = """HloModule m.4, entry_computation_layout={(LEFT[2,2]{1,0}, RIGHT[2,2]{1,0})->RESULT[2,2]{1,0}}

ENTRY %m.4 (a.1: LEFT[2,2], b.2: RIGHT[2,2]) -> RESULT[2,2] {
  %a.1 = LEFT[2,2]{1,0} parameter(0)
  %b.2 = RIGHT[2,2]{1,0} parameter(1)
  ROOT %dot.3 = RESULT[2,2]{1,0} dot(%a.1, %b.2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


# -- comparing --------------------------------------------------------------------------------------------------------
def test_the_same_graph_has_no_difference(graphs: dict[str, hlo.Graph]) -> None:
    same = change(graphs, "train", "again")
    assert same == hlo.GraphChange(True, outputs_before=same.outputs_before, outputs_after=same.outputs_after)
    assert same.lines() == ()


def test_another_batch_size(graphs: dict[str, hlo.Graph]) -> None:
    shorter = change(graphs, "train", "batch")
    assert shorter.same_ops
    assert shorter.same_wiring
    assert (8, 5) in shorter.dims
    old, new = hlo.Tensor("f32", (8, 3, 8, 8)), hlo.Tensor("f32", (5, 3, 8, 8))
    assert (old, new) in [(before, now) for _, before, now in shorter.parameters]
    assert any(line.endswith("is now f32[5,3,8,8], before f32[8,3,8,8]") for line in shorter.lines())
    assert shorter.numbers == ()
    assert not any("constant" in line for line in shorter.lines())


@pytest.mark.parametrize(("old", "new", "pair"), [("top2", "top3", (2, 3)), ("slice4", "slice5", (4, 5))])
def test_a_python_number_that_is_a_size(
    graphs: dict[str, hlo.Graph], old: str, new: str, pair: tuple[int, int]
) -> None:
    found = change(graphs, old, new)
    assert found.same_ops
    assert found.dims == (pair,)
    assert found.parameters == ()
    assert found.lines() == (f"sizes inside the graph changed: {pair[1]}, before {pair[0]}",)


def test_where_a_slice_starts_is_no_size(graphs: dict[str, hlo.Graph]) -> None:
    moved, longer = change(graphs, "item3", "item4"), change(graphs, "slice4", "slice5")
    assert (moved.starts, moved.sizes) == (((3, 4),), ())
    assert (longer.starts, longer.sizes) == ((), ((4, 5),))


def test_a_python_number_in_an_attribute(graphs: dict[str, hlo.Graph]) -> None:
    found = change(graphs, "eps5", "eps3")
    assert found.same_ops
    assert found.numbers == (("1e-05", "0.001"),)
    assert found.dims == ()
    assert found.lines() == ("a constant is now 0.001, before 1e-05",)


def test_a_literal(graphs: dict[str, hlo.Graph]) -> None:
    assert change(graphs, "count0", "count1").constants == (("{0, 1, 2}", "{1, 2, 3}"),)


def test_a_scalar_literal() -> None:
    old = hlo.parse(RANDOM.replace("convert(%p0.1)", "constant(0.1)"))
    new = hlo.parse(RANDOM.replace("convert(%p0.1)", "constant(0.5)"))
    assert hlo.compare(new, old).constants == (("0.1", "0.5"),)
    assert hlo.compare(new, old).lines() == ("a constant is now 0.5, before 0.1",)
    assert 0 < hlo.distance(new, old) < 10


def test_more_live_tensors(graphs: dict[str, hlo.Graph]) -> None:
    found = change(graphs, "one", "three")
    assert (found.outputs_before, found.outputs_after) == (1, 3)
    assert dict(found.added) == {"multiply": 1, "divide": 1}
    assert found.removed == ()
    assert found.lines() == (
        "2 more outputs than before (3, before 1)",
        "2 operations more: multiply 1, divide 1",
    )
    assert change(graphs, "three", "one").lines()[0] == "2 fewer outputs than before (1, before 3)"


def test_other_code(graphs: dict[str, hlo.Graph]) -> None:
    found = change(graphs, "deep", "deeper")
    assert not found.same_ops
    assert dict(found.added) == {"sqrt": 1, "abs": 1}
    assert (found.constants, found.dims, found.attributes) == ((), (), ())
    assert found.parameters == ()
    assert change(graphs, "sincos", "cossin").lines() == ("the same operations are in another order",)


def test_another_wiring() -> None:
    crossed = MULTIPLIED.replace("dot(%a.1, %b.2)", "dot(%b.2, %a.1)")
    for dtype in ("RESULT", "LEFT", "RIGHT"):
        crossed = crossed.replace(dtype, "f32")
    straight = crossed.replace("dot(%b.2, %a.1)", "dot(%a.1, %b.2)")
    found = hlo.compare(hlo.parse(crossed), hlo.parse(straight))
    assert found.same_ops
    assert not found.same_wiring
    assert found.lines() == ("the same operations have other operands",)


def test_parts_that_share_no_tensor() -> None:
    """A number that goes into both connects nothing, nor do the results."""

    def graph(*more: str) -> hlo.Graph:
        lines = (
            "%rate.1 = f32[] parameter(0)",
            "%b.2 = f32[4]{0} broadcast(%rate.1), dimensions={}",
            "%w.3 = f32[4]{0} parameter(1)",
            "%m.4 = f32[4]{0} multiply(%w.3, %b.2)",
            *more,
            "ROOT %t.9 = (f32[4]{0}, f32[2]{0}) tuple(%m.4, %m.4)",
        )
        return hlo.parse(
            "\n".join(("HloModule m", "", "ENTRY %m.10 () -> f32[] {", *(f"  {line}" for line in lines), "}"))
        )

    other = "%p.5 = f32[2]{0} parameter(2)", "%c.6 = f32[2]{0} broadcast(%rate.1), dimensions={}"
    alone, both = hlo.parts(graph()), hlo.parts(graph(*other, "%n.7 = f32[2]{0} multiply(%p.5, %c.6)"))
    (apart,) = (both - alone).elements()
    assert (alone.total(), both & alone) == (1, alone)
    assert sorted(op.opcode for op, _count in apart) == ["broadcast", "multiply", "parameter"]
    assert hlo.parts(graph("%n.5 = f32[4]{0} add(%m.4, %w.3)")).total() == 1


def test_a_new_parameter_does_not_shift_the_others(graphs: dict[str, hlo.Graph]) -> None:
    found = change(graphs, "two", "between")
    new = hlo.Tensor("f32", (2,))
    assert [one for one in found.parameters if one[1] is None] == [(found.parameters[0][0], None, new)]
    assert len(found.parameters) == 1
    assert "1 parameter is new: f32[2]" in found.lines()
    gone = change(graphs, "between", "two")
    assert [(before, now) for _, before, now in gone.parameters] == [(new, None)]
    assert "1 parameter is removed: f32[2]" in gone.lines()


def test_another_element_type(graphs: dict[str, hlo.Graph]) -> None:
    found = change(graphs, "train", "autocast")
    assert dict(found.added)["convert"] > 0
    assert len(found.lines()) <= 6


def test_what_follows_an_insertion_is_still_compared() -> None:
    old = hlo.parse(_chain(40))
    new = hlo.parse(_chain(40, first="abs", constant="0.75"))
    found = hlo.compare(new, old)
    assert not found.same_ops
    assert dict(found.added) == {"abs": 1}
    assert found.constants == (("0.25", "0.75"),)


def _chain(length: int, first: str = "", constant: str = "0.25") -> str:
    """A module of operations that follow each other, with a constant at its end."""
    names = ["sine", "cosine", "tanh", "exponential", "log", "negate", "sqrt"]
    opcodes = [first] * bool(first) + [names[(n * n + n // 7) % 7] for n in range(length)]
    lines = ["  %v.0 = f32[3]{0} parameter(0)"]
    lines += [f"  %v.{n} = f32[3]{{0}} {opcode}(%v.{n - 1})" for n, opcode in enumerate(opcodes, 1)]
    lines += [f"  %c.1 = f32[] constant({constant})", "  %b.2 = f32[3]{0} broadcast(%c.1), dimensions={}"]
    lines += [f"  ROOT %r.3 = f32[3]{{0}} add(%v.{len(opcodes)}, %b.2)"]
    return "\n".join(["HloModule m.1, x={}", "", "ENTRY %m.1 (v.0: f32[3]) -> f32[3] {", *lines, "}", ""])


def test_big_graphs_that_have_nothing_in_common_are_compared_too() -> None:
    old, new = hlo.parse(_chain(20_000)), hlo.parse(_chain(15_000).replace("sine(", "floor("))
    found = hlo.compare(new, old)
    assert dict(found.added)["floor"] > 1000
    assert len(found.lines()) <= 6


def test_distance_chooses_the_nearest(graphs: dict[str, hlo.Graph]) -> None:
    assert hlo.distance(graphs["train"], graphs["again"]) == 0
    shapes = hlo.distance(graphs["train"], graphs["batch"])
    types = hlo.distance(graphs["train"], graphs["autocast"])
    other = hlo.distance(graphs["train"], graphs["deep"])
    assert 0 < shapes < types < other


def test_names_in_the_text_stay_text() -> None:
    strange = RANDOM.replace("algorithm=rng_default", 'name="<script>(1, 2)</script>"')
    found = hlo.compare(hlo.parse(strange), hlo.parse(RANDOM))
    assert found.same_ops
    assert found.attributes == (("algorithm=rng_default", 'name="<script>(1, 2)</script>"'),)
    assert any("<script>" in line for line in found.lines())


def test_nothing_is_imported_for_it() -> None:
    code = """
        import json, sys
        from tpu_magics.backends import hlo
        print(json.dumps([name for name in ("torch", "torch_xla", "numpy") if name in sys.modules]))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, timeout=120)
    assert json.loads(ran.stdout) == []
