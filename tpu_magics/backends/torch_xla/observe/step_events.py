"""What happened since the start of the step: inputs from the host, reads, backward passes, optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tpu_magics.backends.torch_xla.observe import counters
from tpu_magics.backends.torch_xla.observe.compile_evidence import Number, StepFacts
from tpu_magics.backends.torch_xla.observe.snapshot import FrameSnapshot, is_tensor
from tpu_magics.runs.events import Input, Site

_KEPT = 256  # events of one kind in one step
_DEEP = 4
_UNNAMED = "input"


class Arrival(NamedTuple):
    """A tensor that came from the host. `name`: in the batch; `key`: its id on the device."""

    name: str
    key: int
    dtype: Any
    shape: Any


class StepEvents:
    """The events of the current step."""

    def __init__(self) -> None:
        self.ops_counted = counters.data_ops()
        self.short: set[tuple[int, int]] = set()
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self.arrivals: list[Arrival] = []
        self.cuts: dict[int, Site] = {}
        self.values: list[Number] = []
        self.backward = False
        self.stepped = False
        self.optimizer = ""
        self.state_made = False
        self.autocast: set[str] = set()
        self.rates: dict[str, Number] = {}
        self.data_ops: set[str] = set()
        self.by_rank = False

    # -- notes ------------------------------------------------------------------------------------------------------
    def arrived(self, tensor: Any, name: str = "") -> None:
        if len(self.arrivals) < _KEPT:
            self.arrivals.append(Arrival(name, id(tensor), tensor.dtype, tensor.shape))

    def batch(self, batch: Any) -> None:
        """An XLA loader returned a batch: the input of the step."""
        self.arrivals = [Arrival(name, id(tensor), tensor.dtype, tensor.shape) for name, tensor in leaves("", batch)]

    def look_at_data_ops(self) -> None:
        """Which of them ran since the last look. Each runs a graph, so this is called when a graph ran."""
        counted, before = counters.data_ops(), self.ops_counted
        self.ops_counted = counted
        ran = zip(counters.DATA_OPS, counted, before, strict=True)
        self.data_ops.update(name for name, now, earlier in ran if now > earlier)

    def read(self, value: Any) -> None:
        """A number that the host read."""
        if isinstance(value, (bool, int, float)) and len(self.values) < _KEPT:
            self.values.append(value)

    def optimizer_steps(self, optimizer: Any) -> None:
        """Keep its learning rates: a scheduler may have changed them by the time of the sync."""
        kind = self.optimizer = type(optimizer).__name__
        for number, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if isinstance(rate, (int, float)):
                self.rates[f"{kind}.param_groups[{number}]['lr']"] = rate

    def optimizer_stepped(self, had_state: bool, has_state: bool) -> None:
        self.stepped = True
        self.state_made = self.state_made or (has_state and not had_state)

    # -- what is made of them -----------------------------------------------------------------------------------------
    def facts(self, grad: bool, deciding: Callable[[Site], bool]) -> StepFacts:
        return StepFacts(
            cuts=tuple(self.cuts.values()),
            deciding=tuple(site for site in self.cuts.values() if deciding(site)),
            values=tuple(self.values),
            backward=self.backward,
            stepped=self.stepped,
            optimizer=self.optimizer,
            state_made=self.state_made,
            autocast=frozenset(self.autocast),
            grad=grad,
            data_ops=tuple(sorted(self.data_ops)),
            short=frozenset(self.short),
            by_rank=self.by_rank,
        )

    def inputs(self, snapshot: FrameSnapshot, parameters: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[Input, ...]:
        """The inputs of the step by name: what came from the host, and what the user's variables hold on the device if
        the graph takes it in (`parameters`: type and shape)."""
        inputs: dict[str, Input] = {}
        for one in self.arrivals:
            dtype, shape = str(one.dtype).removeprefix("torch."), tuple(one.shape)
            name = one.name or snapshot.name_of(one.key, dtype, shape) or f"{_UNNAMED} {len(inputs)}"
            inputs.setdefault(name, Input(name, shape, dtype))
        taken = {(dtype, shape) for dtype, shape in parameters}
        for seen in snapshot.tensors.values():
            named = seen.leaf and seen.shape and "[" not in seen.name  # not what the step computed and kept
            if named and seen.where == "xla" and any((d, seen.shape) in taken for d in hlo_types(seen.dtype)):
                inputs.setdefault(seen.name, Input(seen.name, seen.shape, seen.dtype))
        return tuple(inputs.values())


_TYPES: Mapping[str, tuple[str, ...]] = {
    "float32": ("f32", "bf16"),
    "float64": ("f64", "f32", "bf16"),
    "bfloat16": ("bf16",),
    "float16": ("f16",),
    "int64": ("s64", "s32"),
    "int32": ("s32",),
    "int16": ("s16",),
    "int8": ("s8",),
    "uint8": ("u8",),
    "bool": ("pred",),
}


def hlo_types(dtype: str) -> tuple[str, ...]:
    """XLA's names for torch's type: with XLA_USE_BF16 a float32 is bf16."""
    return _TYPES.get(dtype, ())


def leaves(name: str, value: Any, depth: int = _DEEP) -> Iterator[tuple[str, Any]]:
    """The tensors of a batch, by name."""
    if is_tensor(value):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(str(key), item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves("", item, depth - 1)


def any_on_device(tensors: Any) -> bool:
    """Whether any tensor that a backward pass starts from is on the XLA device."""
    return any(tensor.is_xla for _name, tensor in leaves("", [tensors]))


def batch_size(batch: Any) -> int | None:
    """The first dimension of a batch's first tensor."""
    first = next((tensor for _name, tensor in leaves("", batch) if tensor.dim()), None)
    return None if first is None else int(first.shape[0])
