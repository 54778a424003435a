"""Rehearsal: several ranks on XLA:CPU, with collectives that run on the host through torch.distributed's gloo.

torch_xla's Python code stays as it is. Only the functions of its C++ module that would put a collective into the graph
are replaced, because XLA:CPU has no collectives across processes. So everything built on them (xm.*,
torch.distributed's "xla" backend, accelerate, FSDP) runs its own code, as on a TPU. torch_xla 2.9.0.
"""
