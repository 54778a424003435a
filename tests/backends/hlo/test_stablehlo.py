"""StableHLO as torch_tpu 0.2.0 writes it, as a graph."""

from __future__ import annotations

from tpu_magics.backends import hlo
from tpu_magics.backends.hlo.stablehlo import parse_stablehlo

TEXT = """\
#loc = loc(unknown)
module @tt_jit_step {
  func.func @main(%arg0: tensor<4x3xf32> loc(unknown), %arg1: tensor<2x3xbf16> loc(unknown), %arg2: tensor<i64>) -> \
(tensor<f32>, tensor<4x3xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32> loc(#loc147)
    %0 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<2x3xbf16>) -> tensor<3x2xbf16> loc(#loc149)
    %1 = stablehlo.convert %arg0 : (tensor<4x3xf32>) -> tensor<4x3xbf16> loc("step.py":3:2)
    %2 = stablehlo.dot_general %1, %0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : \
(tensor<4x3xbf16>, tensor<3x2xbf16>) -> tensor<4x2xf32> loc(#loc)
    %3 = stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [0, 1] : \
(tensor<4x2xf32>, tensor<f32>) -> tensor<f32> loc(#loc1)
    return %3, %arg0 : tensor<f32>, tensor<4x3xf32> loc(#loc)
  } loc(#loc)
} loc(#loc)
"""


def test_operations_types_and_interface() -> None:
    graph = parse_stablehlo(TEXT)
    assert [str(one) for one in graph.parameters] == ["f32[4,3]", "bf16[2,3]", "s64[]"]
    assert [str(one) for one in graph.outputs] == ["f32[]", "f32[4,3]"]
    opcodes = [op.opcode for op in graph.ops]
    assert opcodes == ["parameter"] * 3 + ["constant", "transpose", "convert", "dot", "reduce"]
    dot = graph.ops[6]
    assert (str(dot.result), dot.operands) == ("f32[4,2]", (1, 2))
    assert "contracting_dims = [1] x [0]" in dot.attributes


def test_the_operands_of_a_matmul_decide_its_precision() -> None:
    assert hlo.multiplications(parse_stablehlo(TEXT)) == (1, 1)
    assert hlo.multiplications(parse_stablehlo(TEXT.replace("bf16", "f32"))) == (1, 0)


def test_places_make_no_other_graph_and_shapes_do() -> None:
    graph = parse_stablehlo(TEXT)
    assert parse_stablehlo(TEXT.replace("#loc149", "#loc7")) == graph
    longer = parse_stablehlo(TEXT.replace("4x3x", "5x3x").replace("4x2x", "5x2x"))
    assert longer != graph and hlo.compare(longer, graph).lines()


def test_another_text_is_an_empty_graph() -> None:
    assert parse_stablehlo("no module").ops == ()
