"""How XLA:CPU compiles in the tests: four times as fast, and what comes out runs slower. What lives here: the flags.
What does not: what sets them (conftest.py).

A training step of a test is compiled once and run a few times, and nearly all of that is LLVM's work. An operation is
the same as without them; who looks at what the compiler makes of it sets flags of its own.
"""

QUICK = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",  # a fused loop by the older emitter: half of the time
        "--xla_cpu_parallel_codegen_split_count=1",  # the machines have few cores
    )
)
