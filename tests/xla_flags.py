"""Flags with which XLA:CPU compiles four times as fast in the tests; the program runs slower.

A training step of a test is compiled once and run a few times, and nearly all of that is LLVM's work. Results are the
same. Tests of what the compiler makes of a program set flags of their own.
"""

QUICK = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",  # a fused loop by the older emitter: half of the time
        "--xla_cpu_parallel_codegen_split_count=1",  # the machines have few cores
    )
)
