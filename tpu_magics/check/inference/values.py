"""Abstract values: what the checker knows about a value without running the code; and canonical dotted names: one name
for one thing, however it was imported."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import Any

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


# -- values -----------------------------------------------------------------------------------------------------------


NOTHING: Any = type("Nothing", (), {"__repr__": lambda _: "NOTHING", "__bool__": lambda _: False})()

# Kinds. A tensor is created by torch or tf, a batch comes from a loader, an output from a model (a tensor or a
# structure of them); items and attributes of the last two are tensors.
TENSOR = "tensor"
OUTPUT = "output"
BATCH = "batch"
MODEL = "model"  # also a layer and a loss module: calling it gives an output
OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
LOADER = "loader"
DATASET = "dataset"  # torch or Hugging Face
TFDATA = "tf.data"
DICT = "dict"  # the name of a LIST that has keys
TOKENIZER = "tokenizer"
COLLATOR = "collator"
ACCELERATOR = "accelerator"
TRAINER = "trainer"
ARGUMENTS = "arguments"  # TrainingArguments
DEVICE = "device"
STRATEGY = "strategy"
RESOLVER = "resolver"
NUMBER = "number"  # a Python number, string, bool or None: nothing that XLA computes
ARRAY = "array"  # NumPy, on the host
LIST = "list"  # list, tuple, dict, set
FUNCTION = "function"  # `ref` is a program.Function
CLASS = "class"  # `ref` is a program.Class
INSTANCE = "instance"  # of a class of this program; `ref` is the program.Class
MODULE = "module"  # `name` is what an import names, e.g. "torch.nn.functional" or "torch.float16"
UNKNOWN = "unknown"


class AbstractValue:
    """One abstract value. Treated as immutable: `with_()` makes another.

    Attributes:
        kind: of the names above.
        lib: "torch" or "tf" for tensors, models, optimizers; "" if it is unknown.
        where: "device" (on the XLA device), "host" (certainly on the CPU), "" (unknown: treated as on the device in
            code that runs there; also tensors that torch created without a device argument).
        dtype: of a tensor: "bool", "int", "float" or "".
        name: its canonical name, or that of the call that created it ("torch.utils.data.DataLoader").
        creator: the call that created it, for its arguments; None if there is none.
        creator_ctx: the RuleContext of that call.
        const: the Python constant that it is, else NOTHING.
        varies: a Python number that changes from step to step.
        read: a Python number (or list) that was read from a tensor (`.item()`).
        shape: a Python number (or tuple) that comes from a tensor's shape or a container's length.
        prepared: a loader or model returned by accelerate's prepare, MpDeviceLoader or the like.
        items: the items of a list or tuple, if they are known one by one; else None.
        item: the value of all items, if they are alike; else None.
        ref: the Function or Class of this program; of a list its loader.
    """

    __slots__ = (
        "const",
        "creator",
        "creator_ctx",
        "dtype",
        "item",
        "items",
        "kind",
        "lib",
        "name",
        "prepared",
        "read",
        "ref",
        "shape",
        "varies",
        "where",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        lib: str = "",
        where: str = "",
        dtype: str = "",
        name: str = "",
        creator: ast.AST | None = None,
        const: Any = NOTHING,
        varies: bool = False,
        read: bool = False,
        shape: bool = False,
        prepared: bool = False,
        items: tuple[AbstractValue, ...] | None = None,
        item: AbstractValue | None = None,
        ref: Any = None,
        creator_ctx: Any = None,
    ) -> None:
        self.kind = kind
        self.lib = lib
        self.where = where
        self.dtype = dtype
        self.name = name
        self.creator = creator
        self.const = const
        self.varies = varies
        self.read = read
        self.shape = shape
        self.prepared = prepared
        self.items = items
        self.item = item
        self.ref = ref
        self.creator_ctx = creator_ctx

    def with_(self, **changes: Any) -> AbstractValue:
        """A copy of the value with some attributes changed."""
        result = {name: getattr(self, name) for name in AbstractValue.__slots__}
        return AbstractValue(**{**result, **changes})

    @property
    def is_tensor(self) -> bool:
        """Whether it is certainly a tensor (an output may be a structure)."""
        return self.kind == TENSOR

    @property
    def holds_tensors(self) -> bool:
        return self.kind in (TENSOR, OUTPUT, BATCH) or (self.item is not None and self.item.holds_tensors)

    def __repr__(self) -> str:
        empty = {"creator", "creator_ctx", "ref", "kind"}
        fields = ((name, getattr(self, name)) for name in AbstractValue.__slots__ if name not in empty)
        shown = [f" {name}={what!r}" for name, what in fields if what is not NOTHING and (what or name == "const")]
        return f"<{self.kind}{''.join(shown)}>"


UNKNOWN_VALUE = AbstractValue(UNKNOWN)
A_NUMBER = AbstractValue(NUMBER)
A_SHAPE = AbstractValue(NUMBER, shape=True)
AN_ARRAY = AbstractValue(ARRAY)
NONE = AbstractValue(NUMBER, const=None)


DEEPEST = 3  # levels of lists in lists that are joined item by item


def join(one: AbstractValue, other: AbstractValue, depth: int = 0) -> AbstractValue:
    """The value where two paths meet: a tensor wins over a number (`total = 0` before `total += loss`)."""
    if one is other:
        return one
    if one.kind == other.kind:
        return _alike(one, other, depth)
    for first, second in ((one, other), (other, one)):
        if first.kind == NUMBER and (first.const is None or second.kind in (TENSOR, OUTPUT, BATCH, LIST)):
            return second
        if first.kind == UNKNOWN:
            return UNKNOWN_VALUE if second.kind == NUMBER else second
        if first.kind in (BATCH, OUTPUT) and second.holds_tensors:
            return first.with_(where=first.where if first.where == second.where else "")
    return UNKNOWN_VALUE


def _alike(one: AbstractValue, other: AbstractValue, depth: int) -> AbstractValue:
    if one.kind in (FUNCTION, CLASS):
        return one  # two definitions of one name (`try: ... except ImportError: def ...`)
    result = {name: _same(getattr(one, name), getattr(other, name), _EMPTY[name]) for name in _EMPTY}
    if one.item is not None or other.item is not None:
        result["item"] = one.item or other.item
        if one.item is not None and other.item is not None and depth < DEEPEST:
            result["item"] = join(one.item, other.item, depth + 1)
    if one.items is not None and other.items is not None and len(one.items) == len(other.items) and depth < DEEPEST:
        result["items"] = tuple(join(a, b, depth + 1) for a, b in zip(one.items, other.items, strict=True))
    if result["creator"] is not None:
        result["creator_ctx"] = one.creator_ctx or other.creator_ctx  # of one place, on two passes or paths
    for flag in ("varies", "read", "prepared"):
        result[flag] = getattr(one, flag) or getattr(other, flag)
    return AbstractValue(one.kind, **result)


_EMPTY: dict[str, Any] = {
    "lib": "", "where": "", "dtype": "", "name": "", "creator": None, "const": NOTHING, "shape": False, "items": None,
    "ref": None,
}  # fmt: skip


def _same(one: Any, other: Any, empty: Any) -> Any:
    return (
        one if one is other or (type(one) is type(other) and not isinstance(one, ast.AST) and one == other) else empty
    )
