"""The compile process: `python -m tpu_magics.preflight.compiler JOB`, which holds jaxlib and libtpu and nothing else.

It is a separate process because libtpu cannot be loaded beside torch_xla or TensorFlow, because the compiler ends its
process where it fails hard, and because its memory can be limited.
"""
