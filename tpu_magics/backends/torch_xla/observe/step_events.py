"""What happened since the start of the step: inputs from the host, reads, backward passes, optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tpu_magics.backends.torch.batches import leaves
from tpu_magics.backends.torch_xla.observe import counters
from tpu_magics.backends.torch_xla.observe.snapshot import FrameSnapshot, Number
from tpu_magics.runs.events import Input, Site

_KEPT = 256  # events of one kind in one step
_UNNAMED = "input"


@dataclass(frozen=True)
class StepFacts:
    """What happened since the last step when a graph ran.

    `cuts`: sites where the host read a value of this step; `deciding`: those that decide which branch Python takes;
    `values`: numbers that were read; `backward`, `stepped`: there was a backward pass, an optimizer step; `optimizer`:
    its class; `state_created`: the optimizer created its state; `autocast`: the kinds of autocast that were entered;
    `grad`: grad mode when it ran; `data_ops`: operations whose shape depends on values.
    """

    cuts: tuple[Site, ...] = ()
    deciding: tuple[Site, ...] = ()
    values: tuple[Number, ...] = ()
    backward: bool = False
    stepped: bool = False
    optimizer: str = ""
    state_created: bool = False
    autocast: frozenset[str] = frozenset()
    grad: bool = True
    data_ops: tuple[str, ...] = ()


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
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self.arrivals: list[Arrival] = []
        self.cuts: dict[int, Site] = {}
        self.values: list[Number] = []
        self.backward = False
        self.stepped = False
        self.optimizer = ""
        self.state_created = False
        self.autocast: set[str] = set()
        self.rates: dict[str, Number] = {}
        self.data_ops: set[str] = set()
        self.by_rank = False

    # -- notes ------------------------------------------------------------------------------------------------------
    def on_upload(self, tensor: Any, name: str = "") -> None:
        if len(self.arrivals) < _KEPT:
            self.arrivals.append(Arrival(name, id(tensor), tensor.dtype, tensor.shape))

    def on_batch(self, batch: Any) -> None:
        """An XLA loader returned a batch: the input of the step."""
        self.arrivals = [Arrival(name, id(tensor), tensor.dtype, tensor.shape) for name, tensor in leaves("", batch)]

    def count_data_ops(self) -> None:
        """Which of them ran since the last call. Each runs a graph, so this is called when a graph ran."""
        counted, before = counters.data_ops(), self.ops_counted
        self.ops_counted = counted
        ran = zip(counters.DATA_OPS, counted, before, strict=True)
        self.data_ops.update(name for name, now, earlier in ran if now > earlier)

    def on_read(self, value: Any) -> None:
        """A number that the host read."""
        if isinstance(value, (bool, int, float)) and len(self.values) < _KEPT:
            self.values.append(value)

    def before_optimizer_step(self, optimizer: Any) -> None:
        """Keep its learning rates: a scheduler may have changed them by the time of the sync."""
        kind = self.optimizer = type(optimizer).__name__
        for number, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if isinstance(rate, (int, float)):
                self.rates[f"{kind}.param_groups[{number}]['lr']"] = rate

    def after_optimizer_step(self, had_state: bool, has_state: bool) -> None:
        self.stepped = True
        self.state_created = self.state_created or (has_state and not had_state)

    # -- evidence ----------------------------------------------------------------------------------------------------
    def facts(self, grad: bool, deciding: Callable[[Site], bool]) -> StepFacts:
        return StepFacts(
            cuts=tuple(self.cuts.values()),
            deciding=tuple(site for site in self.cuts.values() if deciding(site)),
            values=tuple(self.values),
            backward=self.backward,
            stepped=self.stepped,
            optimizer=self.optimizer,
            state_created=self.state_created,
            autocast=frozenset(self.autocast),
            grad=grad,
            data_ops=tuple(sorted(self.data_ops)),
        )

    def inputs(self, snapshot: FrameSnapshot, parameters: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[Input, ...]:
        """The inputs of the step by name: what came from the host, and what the user's variables hold on the device if
        the graph takes it in (`parameters`: type and shape)."""
        inputs: dict[str, Input] = {}
        for arrival in self.arrivals:
            dtype, shape = str(arrival.dtype).removeprefix("torch."), tuple(arrival.shape)
            name = arrival.name or snapshot.name_of(arrival.key, dtype, shape) or f"{_UNNAMED} {len(inputs)}"
            inputs.setdefault(name, Input(name, shape, dtype))
        taken = {(dtype, shape) for dtype, shape in parameters}
        for one in snapshot.tensors.values():
            named = one.leaf and one.shape and "[" not in one.name  # not what the step computed and kept
            if named and one.where == "xla" and any((d, one.shape) in taken for d in hlo_types(one.dtype)):
                inputs.setdefault(one.name, Input(one.name, one.shape, one.dtype))
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


def any_on_device(tensors: Any) -> bool:
    """Whether any tensor that a backward pass starts from is on the XLA device."""
    return any(tensor.is_xla for _name, tensor in leaves("", [tensors]))
