"""Canonical dotted names: one name for one thing, however it was imported."""

from __future__ import annotations

import re
from functools import lru_cache

# Spellings of packages that are the same thing; the longest prefix is tried first.
_PREFIXES = {
    "tensorflow.keras": "keras",
    "tensorflow.python.keras": "keras",
    "tensorflow.compat.v2": "tensorflow",
    "tf_keras": "keras",
    "keras.api": "keras",
    "keras.src": "keras",
    "keras.callbacks.callbacks": "keras.callbacks",
    "accelerate.accelerator": "accelerate",
    "accelerate.launchers": "accelerate",
    "accelerate.state": "accelerate",
    "accelerate.utils.random": "accelerate.utils",
    "torch.functional": "torch",
    "torch.utils.data.dataloader": "torch.utils.data",
    "torch.utils.data.dataset": "torch.utils.data",
    "torch.utils.data.distributed": "torch.utils.data",
    "torch.utils.data.sampler": "torch.utils.data",
    "torch._tensor": "torch",
    "datasets.load": "datasets",
    "datasets.arrow_dataset": "datasets",
    "tqdm.auto": "tqdm",
    "tqdm.notebook": "tqdm",
    "tqdm.std": "tqdm",
    "tqdm.asyncio": "tqdm",
    "tqdm.rich": "tqdm",
}
_LONGEST = sorted(_PREFIXES, key=len, reverse=True)
_FIRSTS = {prefix.partition(".")[0] for prefix in _PREFIXES} | {"transformers", "torch"}
_TORCH_MODULE = re.compile(r"torch\.nn\.modules\.\w+\.")
_TORCH_OPTIM = re.compile(r"torch\.optim\.(?!lr_scheduler|swa_utils)[a-z]\w*\.(?=[A-Z])")
_TRANSFORMERS = re.compile(r"transformers\.(?:[a-z]\w*\.)+(?=[A-Z])")

# Conventional names, for a cell or a fragment without the import.
CONVENTIONS = {
    "torch": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "torch_xla": "torch_xla",
    "xm": "torch_xla.core.xla_model",
    "xr": "torch_xla.runtime",
    "xmp": "torch_xla.distributed.xla_multiprocessing",
    "pl": "torch_xla.distributed.parallel_loader",
    "met": "torch_xla.debug.metrics",
    "dist": "torch.distributed",
    "tf": "tensorflow",
    "keras": "keras",
    "np": "numpy",
    "os": "os",
}


@lru_cache(maxsize=20_000)
def canonical(name: str) -> str:
    """The one spelling of a dotted name."""
    if name.partition(".")[0] not in _FIRSTS:
        return name
    for prefix in _LONGEST:
        if name.startswith(prefix) and (len(name) == len(prefix) or name[len(prefix)] == "."):
            name = _PREFIXES[prefix] + name[len(prefix) :]
            break
    if name.startswith("torch."):
        name = _TORCH_MODULE.sub("torch.nn.", name)
        return _TORCH_OPTIM.sub("torch.optim.", name)
    return _TRANSFORMERS.sub("transformers.", name) if name.startswith("transformers.") else name
