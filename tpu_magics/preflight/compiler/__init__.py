"""The compile process: `python -m tpu_magics.preflight.compiler JOB`, which holds jaxlib and libtpu and nothing else.

What lives here: what runs in that process. What does not: starting and watching it (compile_process.py), reading what
XLA dumped (optimised/). A process of its own, because libtpu does not go together with torch_xla or TensorFlow, because
the compiler ends its process where it fails hard, and because its memory can be bounded.
"""
