"""Python calls, files and batches of an input pipeline, read from a tf.data.Dataset without iterating it."""

# A dataset is walked by the Python objects that it was made of: these hold the graphs of its functions with the user's
# lines, and nothing is copied (`tf.raw_ops.DatasetToGraphV2` writes arrays in memory into its graph). That graph is
# read only where there are no such objects: for a dataset that was loaded, or is captured by a function. The attributes
# (`_map_func.function`, `_tensors`, `_filenames`, `_batch_size`, `_count`, ...) are those of TensorFlow 2.21
# (data/ops/*.py); what is missing in another version is not found, and nothing is reported.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tpu_magics.backends.lowered import SourceLine
from tpu_magics.backends.tensorflow.source_locations import SourceLocations, ops

_PYTHON = {
    "GeneratorDataset": "Dataset.from_generator",
    "PyFunc": "tf.numpy_function",
    "PyFuncStateless": "tf.numpy_function",
    "EagerPyFunc": "tf.py_function",
}
_READERS = {
    "TextLineDataset": "TextLineDataset",
    "TFRecordDataset": "TFRecordDataset",
    "FixedLengthRecordDataset": "FixedLengthRecordDataset",
    "CSVDataset": "CsvDataset",
    "CsvDataset": "CsvDataset",
    "SqlDataset": "SqlDataset",
    "LMDBDataset": "LMDBDataset",
    "LoadDataset": "Dataset.load",
    "SnapshotDataset": "Dataset.snapshot",
    "CacheDataset": "Dataset.cache",
    "MatchingFilesDataset": "Dataset.list_files",
    "MatchingFiles": "tf.io.matching_files",
    "ReadFile": "tf.io.read_file",
}
_OF_GENERATOR = "from_generator"  # in names of functions that from_generator creates itself; they contain PyFuncs
_HUGGING_FACE = ("datasets/utils/tf_utils.py", "datasets/arrow_dataset.py")
_FILE_ATTRIBUTES = ("_filenames", "_filename", "_path", "_patterns")
_STRINGS = 64  # checked per tensor
_SCHEME = re.compile(r"^(?:[a-z][a-z0-9+.-]+:/|/(?:bigstore|cns|gcs)/)", re.IGNORECASE)
_LIKE_A_PATH = re.compile(r"^(?:/|~|\.{1,2}/)|/|\.\w{1,8}$|[*?]")


@dataclass(frozen=True)
class PythonCall:
    """A Python call in a pipeline. `what`: the API that put it there."""

    what: str
    place: SourceLine | None = None


@dataclass(frozen=True)
class PipelineFiles:
    """Files that a pipeline reads or writes. `local`: one on this machine ("": none, or names unknown)."""

    what: str
    local: str = ""
    place: SourceLine | None = None


@dataclass(frozen=True)
class InputPipeline:
    """`size`: elements, INFINITE or UNKNOWN; `batches`: None if the last is as large as the others, or without
    batches."""

    size: int
    python: tuple[PythonCall, ...] = ()
    files: tuple[PipelineFiles, ...] = ()
    batches: Batches | None = None


def pipeline_of(dataset: Any, cells: Mapping[str, str] | None = None) -> InputPipeline:
    """The parts of `dataset`. Nothing is run and no element is taken. `cells`: file names of cells -> "In [n]"."""
    found = _PipelineScan(SourceLocations(cells or {}))
    for part in _parts(dataset):
        found.look_at(part)
    return InputPipeline(
        size=size_of(dataset),
        python=tuple(dict.fromkeys(found.python)),
        files=tuple(found.read_files()),
        batches=short_batches(dataset),
    )


# -- the parts of a dataset -------------------------------------------------------------------------------------------


def _parts(dataset: Any) -> Iterator[Any]:
    """The dataset and all datasets that it was made from."""
    seen: set[int] = set()
    waiting = [dataset]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [value for value in values_of(one) if isinstance(value, tf.data.Dataset)]


class _PipelineScan:
    def __init__(self, places: SourceLocations) -> None:
        self.places = places
        self.python: list[PythonCall] = []
        self.readers: list[tuple[str, SourceLine | None]] = []
        self.names: dict[str, None] = {}  # strings that may be file names, in order
        self._seen: set[int] = set()

    def look_at(self, part: Any) -> None:
        kind = type(part).__name__
        for name in _FILE_ATTRIBUTES:
            value = getattr(part, name, None)
            if texts := [text for text in ([value] if isinstance(value, str) else _texts(value)) if text]:
                self._reader(re.sub(r"^_|V\d$", "", kind), None)
                self.names.update(dict.fromkeys(texts))
        for value in values_of(part):
            graph = getattr(getattr(value, "function", None), "graph", None)
            if graph is not None:
                self._function(value.function)
            else:
                self.names.update(dict.fromkeys(_texts(value)))
        if kind == "_VariantDataset":
            self._read_graph(part._variant_tensor)

    def _function(self, function: Any) -> None:
        if id(function.graph) in self._seen:
            return
        self._seen.add(id(function.graph))
        for captured in function.captured_inputs:
            if getattr(captured, "dtype", None) == tf.variant:
                self._read_graph(captured)
            else:
                self.names.update(dict.fromkeys(_texts(captured)))
        for _, op in ops(function.graph):
            self._op(op)

    def _op(self, op: Any) -> None:
        if op.type == "Const" and op.outputs[0].dtype == tf.string:
            self._constant(op.node_def)
        if op.type in _PYTHON and not (op.type != "GeneratorDataset" and _OF_GENERATOR in op.graph.name):
            self.python.append(self._python(op))
        elif _reader(op.type):
            self._reader(op.type, self.places.of_frames(_frames(op)))

    def _python(self, op: Any) -> PythonCall:
        frames = _frames(op)
        is_hugging_face = any(path.replace("\\", "/").endswith(_HUGGING_FACE) for path, _ in frames)
        return PythonCall("to_tf_dataset" if is_hugging_face else _PYTHON[op.type], self.places.of_frames(frames))

    def _reader(self, kind: str, place: SourceLine | None) -> None:
        what = _reader(kind)
        if what and (what, place) not in self.readers:
            self.readers.append((what, place))

    def _constant(self, node: Any) -> None:
        values = node.attr["value"].tensor.string_val[:_STRINGS]
        self.names.update(dict.fromkeys(value.decode("utf-8", "replace") for value in values))

    def _read_graph(self, variant: Any) -> None:
        """Scan the graph of a dataset without Python objects."""
        if not hasattr(variant, "numpy") or variant.shape.rank != 0:
            return
        try:
            written = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1).numpy()
        except (tf.errors.OpError, ValueError):  # not serialisable, or larger than a graph can be
            return
        graph = tf.compat.v1.GraphDef.FromString(written)
        inner = [(each.signature.name, node) for each in graph.library.function for node in each.node_def]
        for function, node in [("", node) for node in graph.node] + inner:
            if node.op == "Const":
                self._constant(node)
            elif node.op in _PYTHON and not (node.op != "GeneratorDataset" and _OF_GENERATOR in function):
                self.python.append(PythonCall(_PYTHON[node.op]))
            else:
                self._reader(node.op, None)

    def read_files(self) -> Iterator[PipelineFiles]:
        local = _local(self.names)
        for what, place in self.readers:
            yield PipelineFiles(what, local, place)


def _frames(op: Any) -> list[tuple[str, int]]:
    """Innermost first."""
    return [(frame.filename, frame.lineno) for frame in reversed(list(op.traceback or ()))]


def _reader(kind: str) -> str:
    return _READERS.get(re.sub(r"V\d$", "", kind), "")


def _texts(value: Any) -> list[str]:
    """The first strings of a tensor with known values; none for anything else."""
    if not tf.is_tensor(value) or value.dtype != tf.string or not hasattr(value, "numpy"):
        return []
    return [text.decode("utf-8", "replace") for text in tf.reshape(value, [-1])[:_STRINGS].numpy()]


def _local(names: Iterable[str]) -> str:
    """The first name of a file on this machine. If some are in a bucket, a bare name may be joined to it."""
    elsewhere = any(_SCHEME.match(name) for name in names)
    for name in names:
        if name and "\n" not in name and not _SCHEME.match(name) and _names_file(name, elsewhere):
            return name
    return ""


def _names_file(name: str, strictly: bool) -> bool:
    if strictly:
        return name.startswith(("/", "~", "./", "../"))
    try:
        return bool(_LIKE_A_PATH.search(name)) or Path(name).exists()
    except (OSError, ValueError):
        return False


# -- batches ----------------------------------------------------------------------------------------------------------

INFINITE, UNKNOWN = -1, -2  # as tf.data has them
_ENDS_BATCHES = ("Unbatch", "FlatMap", "Interleave", "Window", "Group", "Rebatch")


@dataclass(frozen=True)
class Batches:
    """Batches of a pipeline whose last one may be short. `rows`: number of batched rows, or UNKNOWN."""

    size: int
    rows: int

    @property
    def rest(self) -> int | None:
        """Rows of a short last batch; 0 if no batch is short; None if unknown."""
        return None if self.rows == UNKNOWN else self.rows % self.size


def size_of(dataset: Any) -> int:
    """Elements per pass, INFINITE or UNKNOWN."""
    cardinality = getattr(dataset, "cardinality", UNKNOWN)
    size = int(cardinality() if callable(cardinality) else cardinality)
    return size if size >= INFINITE else UNKNOWN


def outermost_batches(dataset: Any) -> Batches | None:
    """The batches that the elements of `dataset` are; None if they are single rows or if it is unknown.

    Its `rows` are those that are batched; drop_remainder and take() are ignored.
    """
    found = _batch_behind(dataset)
    size = found and _number(found[0]._batch_size)
    return Batches(size, size_of(found[0]._input_dataset)) if found and size else None


def short_batches(dataset: Any) -> Batches | None:
    """The outermost batches, if the last one may be shorter and is not the only one."""
    if not any(spec.shape.rank is None or spec.shape.as_list()[:1] == [None] for spec in _specs(dataset)):
        return None
    found, batches = _batch_behind(dataset), outermost_batches(dataset)
    if not found or batches is None or _number(getattr(found[0], "_drop_remainder", None)) or batches.rows == INFINITE:
        return None
    full = batches.rows // batches.size
    if batches.rows != UNKNOWN and (not batches.rest or not full or (found[1] is not None and 0 <= found[1] <= full)):
        return None
    return batches


def _batch_behind(dataset: Any) -> tuple[Any, int | None] | None:
    """The dataset that makes the batches, and how many of them take() keeps; None if a later step unbatches or regroups
    them."""
    one, most = getattr(dataset, "_original_dataset", dataset), None
    while one is not None and not any(sign in type(one).__name__ for sign in _ENDS_BATCHES):
        if getattr(one, "_batch_size", None) is not None:
            return one, most
        taken = _number(getattr(one, "_count", None)) if type(one).__name__ == "_TakeDataset" else None
        most = most if taken is None else taken if most is None else min(taken, most)
        one = next((value for value in values_of(one) if isinstance(value, tf.data.Dataset)), None)
    return None


def _specs(dataset: Any) -> list[Any]:
    return [spec for spec in tf.nest.flatten(dataset.element_spec) if hasattr(spec, "shape")]


def _number(value: Any) -> int | None:
    """A tensor or Python number as int."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def values_of(part: Any) -> Iterator[Any]:
    """Attributes of a dataset object, with lists and mappings unpacked."""
    for value in vars(part).values():
        if isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, Mapping):
            yield from value.values()
        else:
            yield value
