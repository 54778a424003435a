"""TensorFlow's errors while a step is traced and lowered, explained with the user's line and with what to use instead
of ops that XLA cannot compile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpu_magics.backends.lowered import SourceLine, UnsupportedOp
from tpu_magics.backends.tensorflow.source_locations import SourceLocations, ops
from tpu_magics.backends.tensorflow.step import GIVE_MODEL, Step, runs_many_steps
from tpu_magics.errors import TpuMagicsError

# The forms of TensorFlow's errors were read in TensorFlow 2.21.

_NO_KERNEL = re.compile(r"(\w+) \(No registered '\w+' OpKernel for XLA_\w+_JIT devices.*?\{\{node ([^}]+)\}\}")
_NODE = re.compile(r"node [`]?([^`}]+)[`}]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SAID = 300  # characters of TensorFlow's message
_AROUND = (
    *("File ", "in user code", "The op is created", "Stack trace", "[["),
    *("tf2xla conversion", "Exception encountered"),
)
_FAILED = "Failed getting HLO text: '"
_TAKE_OUT = (
    "Do it before the step in the tf.data pipeline, or after the step on its result. (With soft device "
    "placement, TensorFlow on a TPU can run it on the host in the middle of each step; preflight cannot compile "
    "that.)"
)
_REPLACE = "Use another op that XLA supports, or several with the same result."
_FIX = "Fix the line. Call the function with these arguments to see the whole traceback."
_SAME_ERROR = "Fix what the message names; tf.function(..., jit_compile=True) gives the same error on a CPU."
_ONE_REPLICA = "For preflight, create the model outside a strategy with several replicas."
# (pattern in the error's type or text, what to do)
_ADVICE = (
    (
        "Using a symbolic `tf.Tensor` as a Python `bool`",
        "Use tf.cond or tf.where instead of the Python `if`, `while`, `for` or `and` on a tensor. (Keras does "
        "not apply AutoGraph to layers.)",
    ),
    (
        "no attribute 'numpy'",
        "Move the read out of the step: return the tensor and read it after the step.",
    ),
    ("created on the first call", "Create variables once, outside the step."),
    (
        "compile-time constant",
        "Pass the value as a Python number, or as an array instead of a tf.TensorSpec: the program's shapes "
        "depend on it.",
    ),
    ("Trying to access resource", _ONE_REPLICA),
    ('Need to be inside "with strategy.scope()"', _ONE_REPLICA),
)


def tracing_error(step: Step, error: Exception, places: SourceLocations) -> TpuMagicsError:
    """The error for an exception in the step's Python body during tracing."""
    if isinstance(error, TpuMagicsError):
        return error
    place = places.of_error(error)
    kind = type(error).__name__
    return TpuMagicsError(
        f"{step.name} cannot be traced{_at(place)}.",
        f"{kind}: {_words(str(error)).removeprefix(f'{kind}: ')}",
        GIVE_MODEL if runs_many_steps(step.source) else _advice(error, _FIX),
        _code_lines([place]),
    )


def lowering_error(name: str, error: Exception, graph: Any, places: SourceLocations) -> TpuMagicsError:
    """The error for an op that TensorFlow cannot lower to XLA. TensorFlow names only the first op; all ops of the host
    are listed."""
    refused = unsupported_ops(str(error), graph, places)
    if not refused:
        lines = places.of_graph(graph)
        return TpuMagicsError(
            f"TensorFlow cannot lower {name} to XLA.",
            _words(str(error)),
            _advice(error, _SAME_ERROR),
            _code_lines([_line(node, lines) for node in _NODE.findall(str(error))]),
        )
    first = refused[0]
    rest = f" and {len(refused) - 1} more" if refused[1:] else ""
    return TpuMagicsError(
        f"{name} contains an op that XLA cannot compile: {first.op}{_at(first.place)}{rest}.",
        describe(refused),
        _TAKE_OUT if first.kind == "host" else _replaced(first.op),
        code_lines(refused),
    )


def unsupported_ops(text: str, graph: Any, places: SourceLocations) -> tuple[UnsupportedOp, ...]:
    """The ops that an error names and, if there are any, the host ops of this graph, each with its line."""
    lines = places.of_graph(graph)
    refused = named_ops(text, lines)
    return tuple(dict.fromkeys((*refused, *host_ops(graph, lines)))) if refused else ()


def describe(refused: Sequence[UnsupportedOp]) -> str:
    """A short description of each op."""
    return "; ".join(f"{one.op}{_at(one.place)}: {one.text}" for one in refused) + "."


def code_lines(refused: Sequence[UnsupportedOp]) -> list[str]:
    """The code of their lines."""
    return _code_lines([one.place for one in refused])


def _replaced(op: str) -> str:
    known = known_op(op)
    return f"Instead of {known.called}: {known.instead}." if known and known.instead else _REPLACE


def named_ops(text: str, lines: Mapping[str, SourceLine]) -> tuple[UnsupportedOp, ...]:
    """The ops that an error names, each with its line."""
    found = dict.fromkeys((op, _line(node, lines)) for op, node in _NO_KERNEL.findall(text))
    return tuple(_refused(op, place) for op, place in found)


def _line(node: str, lines: Mapping[str, SourceLine]) -> SourceLine | None:
    """The line of an op that the error names without the calls around it."""
    inner = (place for name, place in lines.items() if name.endswith(f"/{node}"))
    return lines.get(node) or next(inner, None)


def host_ops(graph: Any, lines: Mapping[str, SourceLine]) -> Iterator[UnsupportedOp]:
    """Ops of the graph that run on the host."""
    return (_refused(op.type, lines.get(name)) for name, op in ops(graph) if op.type in HOST)


def _refused(op: str, place: SourceLine | None) -> UnsupportedOp:
    known = known_op(op)
    if op in HOST and known is not None:
        return UnsupportedOp(op, f"{known.called} runs on the host, outside the XLA program", "host", place)
    return UnsupportedOp(op, f"XLA has no op for {known.called}" if known else "XLA has no such op", "compiler", place)


def _advice(error: Exception, otherwise: str) -> str:
    text = f"{type(error).__name__} {error}"
    return next((todo for sign, todo in _ADVICE if sign in text), otherwise)


def _at(place: SourceLine | None) -> str:
    return f" at {place}" if place else ""


def _code_lines(places: list[SourceLine | None]) -> list[str]:
    return [f"{place}: {place.code}" for place in dict.fromkeys(places) if place and place.code]


def _words(text: str) -> str:
    """The message itself, from a text with stack lines around it."""
    lines = [_COLOUR.sub("", line).strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_AROUND)]
    signed = [line for line in kept if any(sign in line for sign, _ in _ADVICE)]
    chosen = (signed or kept or ["no text"])[-1 if text.startswith("in user code") else 0].removeprefix(_FAILED)
    return chosen if len(chosen) <= _SAID else f"{chosen[:_SAID].rpartition('. ')[0] or chosen[:_SAID]}."


# -- ops that XLA cannot compile --------------------------------------------------------------------------------------


# Tried in TensorFlow 2.21 and Keras 3.15, on a CPU. Read in TensorFlow's source: XLA kernels are registered for all
# devices alike (compiler/tf2xla/kernels), and a few more for a TPU only (core/tpu/kernels: TPU_ONLY). So an op that a
# CPU lacks and that is in LACKING is missing on a TPU with tensorflow-tpu (2.20) as well. Reported by users on TPUs:
# tensorflow/tensorflow#32240 (LogUniformCandidateSampler), #33402 (determinants). TensorFlow's main branch got kernels
# for determinants and for "bicubic" in 2026 (tensorflow/tensorflow#126101).

EVERYWHERE = "it would fail on a TPU too"
ONLY_CPU = "only on this machine: a TPU supports this op"
UNKNOWN = "TPU support is unknown"


@dataclass(frozen=True)
class OpAlternative:
    """`called`: the name in users' code; `instead`: what XLA does compile, or where else to do it."""

    called: str
    instead: str = ""


_IN_DATA = "do it before the step in the input pipeline: dataset.map(lambda x, y: (layer(x), y))"
_DRAWN = f"{_IN_DATA}; or use tf.random.normal or tf.random.uniform, which XLA supports"
_SEGMENTS = "tf.math.unsorted_segment_{0}(data, ids, num_segments), or keras.ops.segment_{0} without sorted=True"
_RESIZED = 'interpolation="bilinear"; or resize in the input pipeline'
_DECOMPOSED = "tf.linalg.qr: the absolute value of the determinant is that of the product of r's diagonal"
_PADDED = "pad to one length and multiply by the mask (tf.sequence_mask)"
_BEFORE = "do it before the step in the input pipeline, or after the step on its result"

HOST: Mapping[str, OpAlternative] = {
    "PyFunc": OpAlternative("tf.numpy_function"),
    "PyFuncStateless": OpAlternative("tf.numpy_function"),
    "EagerPyFunc": OpAlternative("tf.py_function"),
    "PrintV2": OpAlternative("tf.print"),
    "StringFormat": OpAlternative("tf.print or tf.strings.format"),
    "AsString": OpAlternative("tf.strings.as_string"),
    "StringLength": OpAlternative("tf.strings.length"),
    "Timestamp": OpAlternative("tf.timestamp"),
    "WriteScalarSummary": OpAlternative("tf.summary"),
    "WriteSummary": OpAlternative("tf.summary"),
    "LookupTableFindV2": OpAlternative("a lookup table"),
    "IteratorGetNext": OpAlternative("an iterator over a dataset"),
    "EncodeJpegVariableQuality": OpAlternative("tf.image.adjust_jpeg_quality"),
}
"""Ops that run on the host, outside of any program of XLA."""

LACKING: Mapping[str, OpAlternative] = {
    **HOST,
    "ResizeBicubic": OpAlternative('resizing with "bicubic"', _RESIZED),
    "ResizeArea": OpAlternative('resizing with "area"', _RESIZED),
    "ScaleAndTranslate": OpAlternative('resizing with "lanczos3", "lanczos5", "gaussian" or antialias=True', _RESIZED),
    "CropAndResize": OpAlternative("tf.image.crop_and_resize", "slices of a known size with tf.image.resize"),
    "ImageProjectiveTransformV3": OpAlternative(
        "affine_transform or perspective_transform of keras.ops.image", _IN_DATA
    ),
    "DrawBoundingBoxesV2": OpAlternative("tf.image.draw_bounding_boxes", _BEFORE),
    "SampleDistortedBoundingBoxV2": OpAlternative("tf.image.sample_distorted_bounding_box", _IN_DATA),
    "CombinedNonMaxSuppression": OpAlternative(
        "tf.image.combined_non_max_suppression", "tf.image.non_max_suppression_padded(..., pad_to_max_output_size=True)"
    ),
    "RandomGamma": OpAlternative("tf.random.gamma", _DRAWN),
    "StatelessRandomGammaV2": OpAlternative("a gamma or beta distribution (tf.random.stateless_gamma)", _DRAWN),
    "StatelessRandomGammaV3": OpAlternative("a gamma or beta distribution (keras.random.gamma, CutMix, MixUp)", _DRAWN),
    "RandomPoissonV2": OpAlternative("tf.random.poisson", _DRAWN),
    "StatelessRandomPoisson": OpAlternative("tf.random.stateless_poisson", _DRAWN),
    "StatelessRandomBinomial": OpAlternative("a binomial distribution (keras.random.binomial)", _DRAWN),
    "LogUniformCandidateSampler": OpAlternative(
        "the sampler of tf.nn.nce_loss and tf.nn.sampled_softmax_loss",
        "the loss over all classes (tf.nn.sparse_softmax_cross_entropy_with_logits), or draw sampled_values= in "
        "the input pipeline",
    ),
    "SegmentSum": OpAlternative("tf.math.segment_sum", _SEGMENTS.format("sum")),
    "SegmentMean": OpAlternative("tf.math.segment_mean", "tf.math.unsorted_segment_mean(data, ids, num_segments)"),
    "SegmentMax": OpAlternative("tf.math.segment_max", _SEGMENTS.format("max")),
    "SegmentMin": OpAlternative("tf.math.segment_min", "tf.math.unsorted_segment_min(data, ids, num_segments)"),
    "SegmentProd": OpAlternative("tf.math.segment_prod", "tf.math.unsorted_segment_prod(data, ids, num_segments)"),
    "SparseSegmentSum": OpAlternative("tf.sparse.segment_sum", _SEGMENTS.format("sum")),
    "SparseSegmentMean": OpAlternative("tf.nn.embedding_lookup_sparse", f"tf.nn.embedding_lookup: {_PADDED}"),
    "SparseTensorDenseMatMul": OpAlternative("tf.sparse.sparse_dense_matmul", "tf.matmul with a dense matrix"),
    "RaggedTensorToTensor": OpAlternative("a ragged tensor", _PADDED),
    "LogMatrixDeterminant": OpAlternative("tf.linalg.slogdet", _DECOMPOSED),
    "MatrixDeterminant": OpAlternative("tf.linalg.det", _DECOMPOSED),
    "MatrixSquareRoot": OpAlternative("tf.linalg.sqrtm", "tf.linalg.eigh, if the matrix is symmetric"),
    "Eig": OpAlternative("tf.linalg.eig", "tf.linalg.eigh, if the matrix is symmetric"),
    "ResourceGatherNd": OpAlternative(
        "tf.gather_nd of a variable", "tf.gather_nd(tf.convert_to_tensor(variable), ...)"
    ),
    "UniqueWithCounts": OpAlternative("tf.unique_with_counts", _BEFORE),
    "DenseToDenseSetOperation": OpAlternative("tf.sets", _BEFORE),
    "HistogramFixedWidth": OpAlternative("tf.histogram_fixed_width", "tf.math.bincount(..., minlength=N, maxlength=N)"),
    "EditDistance": OpAlternative("tf.edit_distance", _BEFORE),
    "CTCGreedyDecoder": OpAlternative("tf.nn.ctc_greedy_decoder", _BEFORE),
    "CTCBeamSearchDecoder": OpAlternative("tf.nn.ctc_beam_search_decoder", _BEFORE),
    "MaxPoolWithArgmax": OpAlternative("tf.nn.max_pool_with_argmax", "tf.nn.max_pool2d, if the indices are not needed"),
    "FractionalMaxPool": OpAlternative("tf.nn.fractional_max_pool", "tf.nn.max_pool2d"),
    "Dilation2D": OpAlternative("tf.nn.dilation2d"),
    "BesselI0": OpAlternative("tf.math.bessel_i0", "tf.exp(tf.abs(x)) * tf.math.bessel_i0e(x)"),
    "Dawsn": OpAlternative("tf.math.special.dawsn"),
    "Expint": OpAlternative("tf.math.special.expint"),
    "FresnelCos": OpAlternative("tf.math.special.fresnel_cos"),
    "Spence": OpAlternative("tf.math.special.spence"),
}
"""Ops that XLA compiles on no device."""

TPU_ONLY: Mapping[str, OpAlternative] = {
    "ResizeNearestNeighborGrad": OpAlternative(
        'the gradient of resizing with "nearest" (tf.image.resize, keras.layers.Resizing)',
        "keras.layers.UpSampling2D, which repeats pixels, if the new size is a multiple",
    ),
    "InplaceAdd": OpAlternative("tf.raw_ops.InplaceAdd", "tf.tensor_scatter_nd_add"),
    "InplaceUpdate": OpAlternative("tf.raw_ops.InplaceUpdate", "tf.tensor_scatter_nd_update"),
}
"""Ops that XLA compiles on a TPU, and not on a CPU (core/tpu/kernels/image_resize_ops.cc, xla/inplace_ops.cc)."""

_KNOWN = {**LACKING, **TPU_ONLY}


def known_op(op: str) -> OpAlternative | None:
    """The entry for an op that XLA:CPU refuses."""
    return _KNOWN.get(op)


def where(ops: list[str]) -> str:
    """Whether a TPU also refuses these ops, which XLA:CPU refuses."""
    if any(op in LACKING for op in ops):
        return EVERYWHERE
    return ONLY_CPU if all(op in TPU_ONLY for op in ops) else UNKNOWN
