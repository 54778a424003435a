"""Programs written by hand as StableHLO, whose sizes are known, and a short way to compile them."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tpu_magics.backends.lowered import LoweredGraph
from tpu_magics.preflight.compilation import CompileProgress, compile_graphs
from tpu_magics.preflight.compile_cache import Store
from tpu_magics.preflight.compile_result import CompileResult
from tpu_magics.preflight.targets import Target, parse

ROW = 4096  # bytes of f32[1024]: a whole number of tiles of 8 x 128, so that nothing is padded

# One step of y = x w, dw = x' y, w - dw: two multiplications of 2 * 64 * 512 * 512 FLOPs each. Its numbers are as
# `Graph.places` has them.
TRAINING = """module @training {
  func.func public @main(%w: tensor<512x512xf32>, %x: tensor<64x512xf32>) -> tensor<512x512xf32> {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32> loc("aten__mm.5#12")
    %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<512x512xf32> loc("aten__mm.6#13")
    %n = stablehlo.subtract %w, %g : tensor<512x512xf32> loc("aten__sub.7#14")
    return %n : tensor<512x512xf32>
  }
}
"""
TRAINING_FLOPS = 2 * 2 * 64 * 512 * 512

# The gradient is summed over four replicas.
REPLICAS = """module @replicas {
  func.func public @main(%w: tensor<512x512xf32>, %x: tensor<64x512xf32>) -> tensor<512x512xf32> {
    %g = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0]
      : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<512x512xf32>
    %r = "stablehlo.all_reduce"(%g) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<512x512xf32>) -> tensor<512x512xf32>
    %n = stablehlo.subtract %w, %r : tensor<512x512xf32>
    return %n : tensor<512x512xf32>
  }
}
"""

# The batch is split over four devices: each has f32[16,512] of it, and all of the weights.
PARTITIONS = """module @partitions {
  func.func public @main(
    %w: tensor<512x512xf32> {mhlo.sharding = "{replicated}"},
    %x: tensor<64x512xf32> {mhlo.sharding = "{devices=[4,1]0,1,2,3}"}
  ) -> tensor<512x512xf32> {
    %g = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0]
      : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<512x512xf32>
    %n = stablehlo.subtract %w, %g : tensor<512x512xf32>
    return %n : tensor<512x512xf32>
  }
}
"""

CUSTOM_CALL = """module @custom {
  func.func public @main(%a: tensor<128xf32>) -> tensor<128xf32> {
    %0 = stablehlo.custom_call @my_own_kernel(%a) : (tensor<128xf32>) -> tensor<128xf32> loc("train.py":12:4)
    return %0 : tensor<128xf32>
  }
}
"""

HOST_CALLBACK = CUSTOM_CALL.replace("my_own_kernel", "xla_python_cpu_callback")

TYPE = """module @type {
  func.func public @main(%a: tensor<16xcomplex<f64>>) -> tensor<16xcomplex<f64>> {
    %0 = stablehlo.fft %a, type = FFT, length = [16] : (tensor<16xcomplex<f64>>) -> tensor<16xcomplex<f64>>
    return %0 : tensor<16xcomplex<f64>>
  }
}
"""

WIDE_CALL = """module @wide {
  func.func public @main(%a: tensor<8x8xf32>) -> tensor<8x8xcomplex<f32>> {
    %0 = stablehlo.custom_call @lapack_sgetrf(%a) {api_version = 4 : i32}
      : (tensor<8x8xf32>) -> tensor<8x8xcomplex<f32>> loc("train.py":12:4)
    return %0 : tensor<8x8xcomplex<f32>>
  }
}
"""

DYNAMIC = """module @dynamic {
  func.func public @main(%a: tensor<?xf32>) -> tensor<?xf32> {
    %0 = stablehlo.add %a, %a : tensor<?xf32>
    return %0 : tensor<?xf32>
  }
}
"""

NO_OP = CUSTOM_CALL.replace("stablehlo.custom_call @my_own_kernel(%a)", "stablehlo.no_such_op %a")

# softmax(q k') v, in f32.
ATTENTION = """module @attention {
  func.func public @main(
    %q: tensor<8x12x2048x64xf32>, %k: tensor<8x12x2048x64xf32>, %v: tensor<8x12x2048x64xf32>
  ) -> tensor<8x12x2048x64xf32> {
    %s = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (Q, Q) -> S
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [3] : (S, tensor<f32>) -> R
    %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2] : (R) -> S
    %d = stablehlo.subtract %s, %mb : S
    %e = stablehlo.exponential %d : S
    %u = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [3] : (S, tensor<f32>) -> R
    %ub = stablehlo.broadcast_in_dim %u, dims = [0, 1, 2] : (R) -> S
    %p = stablehlo.divide %e, %ub : S
    %o = stablehlo.dot_general %p, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (S, Q) -> Q
    return %o : Q
  }
}
"""
for _short, _long in (("Q", "8x12x2048x64"), ("S", "8x12x2048x2048"), ("R", "8x12x2048")):
    ATTENTION = re.sub(rf"\b{_short}\b", f"tensor<{_long}xf32>", ATTENTION)
ATTENTION_SCORES = 4 * 8 * 12 * 2048 * 2048


def elementwise(rows: int) -> str:
    """Takes and gives `rows` x ROW bytes, with nothing in between."""
    return f"""module @elementwise {{
  func.func public @main(%a: tensor<{rows}x1024xf32>) -> tensor<{rows}x1024xf32> {{
    %0 = stablehlo.sine %a : tensor<{rows}x1024xf32> loc("aten__sin.1#3")
    return %0 : tensor<{rows}x1024xf32>
  }}
}}
"""


def sorting(rows: int) -> str:
    """Takes `rows` x ROW bytes, and needs them a second time for the sorted copy."""
    return f"""module @sorting {{
  func.func public @main(%a: tensor<{rows}x1024xf32>) -> tensor<f32> {{
    %t = "stablehlo.sort"(%a) ({{
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %p = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
    }}) {{dimension = 1 : i64, is_stable = false}} : (tensor<{rows}x1024xf32>) -> tensor<{rows}x1024xf32>
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %r = stablehlo.reduce(%t init: %c) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<{rows}x1024xf32>, tensor<f32>) -> tensor<f32>
    return %r : tensor<f32>
  }}
}}
"""


def slow(multiplications: int) -> str:
    """Takes the compiler a while: so many large multiplications, no two of which are alike."""
    sizes = [8192 + 128 * (number % 7) for number in range(multiplications + 1)]
    takes = [f"%w{n}: tensor<{a}x{b}xf32>" for n, (a, b) in enumerate(itertools.pairwise(sizes))]
    lines, given = [], f"tensor<{sizes[0]}x{sizes[0]}xf32>"
    for number, (a, b) in enumerate(itertools.pairwise(sizes)):
        gives = f"tensor<{sizes[0]}x{b}xf32>"
        lines.append(
            f"%y{number + 1} = stablehlo.dot_general %y{number}, %w{number}, contracting_dims = [1] x [0] "
            f": ({given}, tensor<{a}x{b}xf32>) -> {gives}"
        )
        given = gives
    body = "\n    ".join(lines)
    return f"""module @slow {{
  func.func public @main(%y0: tensor<{sizes[0]}x{sizes[0]}xf32>, {", ".join(takes)}) -> {given} {{
    {body}
    return %y{multiplications} : {given}
  }}
}}
"""


def graph(text: str, **more: Any) -> LoweredGraph:
    """A graph of StableHLO."""
    name = text.split()[1].lstrip("@")
    return LoweredGraph(**{"module": text.encode(), "form": "stablehlo", "hash": name, **more})


def hlo(text: str) -> bytes:
    """The same program as a serialized HloModuleProto, made by jaxlib in a process of its own."""
    code = """if True:
        import sys
        from jaxlib import _jax
        from tpu_magics.preflight.compiler import jaxlib_private
        with jaxlib_private.context() as made:
            module = jaxlib_private.parse(made, sys.stdin.buffer.read(), "stablehlo")
            text = module.operation.get_asm(enable_debug_info=True)
        made = _jax.mlir.mlir_module_to_xla_computation(text)
        sys.stdout.buffer.write(made.as_serialized_hlo_module_proto())
    """
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run([sys.executable, "-c", code], input=text.encode(), capture_output=True, cwd=root, check=True)
    return ended.stdout


def compile_some(
    graphs: Sequence[LoweredGraph],
    target: Target | str = "v5e-4",
    on_progress: Callable[[CompileProgress], None] = lambda _: None,
    store: Store | None = None,
    **more: Any,
) -> list[CompileResult]:
    """`compile_graphs`, in the tests' own words."""
    chosen = parse(target) if isinstance(target, str) else target
    return compile_graphs(graphs, chosen, store=store, on_progress=on_progress, **more)
