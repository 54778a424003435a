"""Compiles small programs for TPUs that are not there, and dumps what the compiler says of them.

Run in a process of its own: `python analysis_programs.py FOLDER [NAME ...]`. FOLDER gets the dump, and `xla.json`:
what XLA's own analyses say of each program, by name. With names, those programs alone are compiled, for v5e.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER, NAMES = Path(sys.argv[1]), sys.argv[2:]
os.environ.update(
    JAX_PLATFORMS="cpu",
    TPU_SKIP_MDS_QUERY="1",
    TPU_ACCELERATOR_TYPE="v5litepod-8",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_WORKER_ID="0",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    XLA_FLAGS=f"--xla_dump_to={FOLDER} --xla_dump_hlo_as_text",
)

import jax  # noqa: E402  # the variables above are read when it is imported
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding  # noqa: E402
from through_client import compiled  # noqa: E402  # it lies beside this file

BF16 = jnp.bfloat16
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...], tuple[str, ...]]] = {}
ALL = ("v5e:2x4", "v6e:2x4", "v3:2x2")


def program(*shapes: Any, donated: tuple[int, ...] = (), targets: tuple[str, ...] = ALL[:1]) -> Any:
    """Registers a function with the shapes of its arguments: (sizes, type) or sizes, which are f32."""

    def register(function: Any) -> Any:
        PROGRAMS[function.__name__] = (function, shapes, donated, targets)
        return function

    return register


def wide(*sizes: int) -> tuple[tuple[int, ...], Any]:
    return sizes, BF16


@program((500, 1000), (1000, 300), targets=ALL)
def matmul_f32(x, w):
    return x @ w


@program(wide(500, 1000), wide(1000, 300))
def matmul_bf16(x, w):
    return x @ w


@program(((512, 1024), jnp.int8), ((1024, 256), jnp.int8))
def matmul_s8(x, w):
    return lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)


@program((500, 1000), (1000, 300))
def matmul_autocast(x, w):
    return (x.astype(BF16) @ w.astype(BF16)).astype(jnp.float32)


@program(wide(500, 1000), wide(1000, 300))
def matmul_widened(x, w):
    return x.astype(jnp.float32) @ w.astype(jnp.float32)


@program(wide(500, 1000), (1000, 300))
def matmul_mixed(x, w):
    return lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


@program((8, 200, 100), (8, 100, 300))
def batched(x, w):
    return jnp.einsum("bij,bjk->bik", x, w)


def _attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8, axis=-1)
    return jnp.einsum("bhqk,bhkd->bhqd", scores, v)


@program(*[(8, 12, 128, 64)] * 3, targets=ALL)
def attention_f32(q, k, v):
    return _attention(q, k, v)


@program(*[wide(8, 12, 128, 64)] * 3)
def attention_bf16(q, k, v):
    return _attention(q, k, v)


@program(*[wide(4, 12, 128, 64)] * 3)
def attention_gradient(q, k, v):
    return jax.grad(lambda *a: (_attention(*a).astype(jnp.float32) ** 2).sum(), (0, 1, 2))(q, k, v)


def _convolve(x, w, **keywords):
    keywords = {"window_strides": (1, 1), "padding": "SAME", **keywords}
    return lax.conv_general_dilated(x, w, dimension_numbers=("NCHW", "OIHW", "NCHW"), **keywords)


@program((4, 16, 16, 16), (32, 16, 3, 3))
def convolution_same(x, w):
    return _convolve(x, w)


@program((4, 16, 16, 16), (32, 16, 3, 3))
def convolution_strided(x, w):
    return _convolve(x, w, window_strides=(2, 2), padding="VALID", rhs_dilation=(2, 2))


@program((4, 16, 8, 8), (32, 16, 3, 3))
def convolution_transposed(x, w):
    return _convolve(x, w, lhs_dilation=(2, 2), padding=((1, 2), (1, 2)))


@program((4, 32, 8, 8), (64, 8, 3, 3), targets=ALL[:2])
def convolution_grouped(x, w):
    return _convolve(x, w, feature_group_count=4)


@program((4, 3, 16, 16), (16, 3, 3, 3), (16, 16, 1, 1))
def convolution_gradient(x, a, b):
    return jax.grad(lambda a, b: (_convolve(jax.nn.relu(_convolve(x, a)), b) ** 2).sum(), (0, 1))(a, b)


def _rounds(x, ws):
    return lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0]


@program((64, 200), (10, 200, 200), targets=ALL)
def scan(x, ws):
    return _rounds(x, ws)


@program((64, 200), (10, 200, 200))
def scan_gradient(x, ws):
    return jax.grad(lambda x, ws: (_rounds(x, ws) ** 2).sum(), (0, 1))(x, ws)


@program((64, 200), (4, 5, 200, 200))
def nested(x, ws):
    return lax.scan(lambda c, inner: (_rounds(c, inner), None), x, ws)[0]


@program((64, 200), (200, 200), ((), jnp.int32))
def unbounded(x, w, n):
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (0, x))[1]


@program((64, 200), (200, 200))
def backwards(x, w):
    return lax.while_loop(lambda c: c[0] > 3, lambda c: (c[0] - 2, jnp.tanh(c[1] @ w)), (12, x))[1]


@program((64, 200), (200, 200), (200, 600), (600, 200), ((), jnp.int32))
def conditional(x, a, b, c, i):
    return lax.cond(i > 0, lambda x: jnp.tanh(x @ a), lambda x: jnp.tanh(x @ b) @ c, x)


@program(((8, 128), jnp.int32), (3052, 100), (100, 100), donated=(1,))
def embedding(i, table, w):
    loss = lambda table: (jnp.tanh(jnp.take(table, i, axis=0) @ w) ** 2).sum()  # noqa: E731
    return table - 0.1 * jax.grad(loss)(table)


@program(((2,), jnp.uint32), (64, 1000), (1000, 1000))
def dropout(key, x, w):
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)
    return jnp.where(kept, x / 0.9, 0) @ w


@program((1000, 3000), (500, 1000), (1000, 3000), donated=(0, 2))
def step(w, x, m):
    gradient = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)
    return w - 0.1 * gradient, m * 0.9 + gradient


@program((7,), (3, 5), (2, 1000), (7, 3, 5), (100, 1), (5000, 3, 3), (), wide(17), wide(3, 17), wide(2, 17),
         ((33,), jnp.int8), ((5, 33), jnp.int8), ((5, 33), jnp.bool_), wide(2, 7, 1000), (3, 1, 1, 7),
         ((64, 64), jnp.complex64), targets=ALL)  # fmt: skip
def shapes(*arrays):
    return [~one if one.dtype == jnp.bool_ else one + one for one in arrays]


@program((64, 100), (100, 100))
def calling_back(x, w):
    jax.debug.callback(print, x.sum())
    return x @ w


@program((8192, 8192), (8192, 8192))
def spilling(x, w):
    y = jnp.tanh(x @ w)
    z = w @ y
    return y @ z


@program(wide(65536, 1024), wide(1024, 65536))
def too_large(x, w):
    y = x @ w
    return y @ y @ jnp.tanh(y)


def told(executable: Any) -> dict[str, Any]:
    """What XLA's own analyses say."""
    costs = executable.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    direct = getattr(executable, "get_compiled_memory_stats", None)
    memory = direct() if direct else executable.memory_analysis()
    names = ("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes", "temp_size_in_bytes")
    return {"flops": costs.get("flops"), **{name: getattr(memory, name) for name in names}}


def compile_one(name: str, target: str, devices: Any) -> dict[str, Any]:
    function, arguments, donated, _ = PROGRAMS[name]
    pairs = (one if len(one) == 2 and isinstance(one[0], tuple) else (one, jnp.float32) for one in arguments)
    sharding = SingleDeviceSharding(devices[0])
    structs = [jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding) for sizes, dtype in pairs]
    function.__name__ = f"{name}_{target.partition(':')[0]}"
    lowered = jax.jit(function, donate_argnums=donated).lower(*structs)
    try:
        return told(compiled(lowered, devices[:1]))
    except Exception as problem:  # a refusal is a result here
        return {"error": str(problem)}


def compile_replicated(devices: Any) -> dict[str, Any]:
    mesh = Mesh(np.array(devices), ("replica",))
    split, whole = (NamedSharding(mesh, PartitionSpec(*one)) for one in (("replica",), ()))

    def replicated_v5e(x, w):
        return w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)

    x = jax.ShapeDtypeStruct((64 * len(devices), 1000), jnp.float32)
    w = jax.ShapeDtypeStruct((1000, 300), jnp.float32)
    lowered = jax.jit(replicated_v5e, in_shardings=(split, whole), out_shardings=whole).lower(x, w)
    return told(compiled(lowered, devices))


def main() -> None:
    found: dict[str, Any] = {"versions": {"jax": jax.__version__}}
    for target in ALL[:1] if NAMES else ALL:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=target).devices
        for name, (*_, targets) in PROGRAMS.items():
            if target in targets and name in (NAMES or PROGRAMS):
                found[f"{name}_{target.partition(':')[0]}"] = compile_one(name, target, devices)
        if target == ALL[0] and not NAMES:
            found["replicated_v5e"] = compile_replicated(devices)
    (FOLDER / "xla.json").write_text(json.dumps(found))


main()
