"""Several ranks on XLA:CPU: what torch_xla itself cannot do on a machine without a TPU.

What lives here: world.py (what torch_xla is told of the world), group.py (the ranks, connected by torch.distributed's
gloo), graph.py (a graph cut, tensors to the host and back), collectives.py (torch_xla's collectives over them), join.py
(all of it put into one worker). What does not: forking (launch/), counting the pieces of a cut graph (observe/).

torch_xla's Python stays as it is: what is replaced are the functions of its C++ module that would put a collective into
the graph, because XLA:CPU has none across processes. So all that is built on them (xm.*, torch.distributed's backend
"xla", accelerate, FSDP) runs its own code, as on a TPU. Read in torch_xla 2.9.0.
"""

from __future__ import annotations


def problem() -> str:
    """Why ranks cannot be rehearsed with this PyTorch; "" where they can."""
    import torch.distributed as dist

    if not dist.is_available():
        return "This build of PyTorch has no torch.distributed, which carries the ranks' collectives."
    if not dist.is_gloo_available():
        return "This build of PyTorch has no gloo, which carries the ranks' collectives on the host."
    return ""
