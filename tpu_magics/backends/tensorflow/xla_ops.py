"""TensorFlow ops that XLA cannot compile, with the names users know and what to use instead."""

# Tried in TensorFlow 2.21 and Keras 3.15, on a CPU. Read in TensorFlow's source: XLA kernels are registered for all
# devices alike (compiler/tf2xla/kernels), and a few more for a TPU only (core/tpu/kernels: TPU_ONLY). So an op that a
# CPU lacks and that is in LACKING is missing on a TPU with tensorflow-tpu (2.20) as well. Reported by users on TPUs:
# tensorflow/tensorflow#32240 (LogUniformCandidateSampler), #33402 (determinants). TensorFlow's main branch got kernels
# for determinants and for "bicubic" in 2026 (tensorflow/tensorflow#126101).

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


def of(op: str) -> OpAlternative | None:
    """The entry for an op that XLA:CPU refuses."""
    return _KNOWN.get(op)


def where(ops: list[str]) -> str:
    """Whether a TPU also refuses these ops, which XLA:CPU refuses."""
    if any(op in LACKING for op in ops):
        return EVERYWHERE
    return ONLY_CPU if all(op in TPU_ONLY for op in ops) else UNKNOWN
