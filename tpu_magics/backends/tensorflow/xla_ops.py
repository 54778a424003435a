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
class UnsupportedOp:
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

HOST: Mapping[str, UnsupportedOp] = {
    "PyFunc": UnsupportedOp("tf.numpy_function"),
    "PyFuncStateless": UnsupportedOp("tf.numpy_function"),
    "EagerPyFunc": UnsupportedOp("tf.py_function"),
    "PrintV2": UnsupportedOp("tf.print"),
    "StringFormat": UnsupportedOp("tf.print or tf.strings.format"),
    "AsString": UnsupportedOp("tf.strings.as_string"),
    "StringLength": UnsupportedOp("tf.strings.length"),
    "Timestamp": UnsupportedOp("tf.timestamp"),
    "WriteScalarSummary": UnsupportedOp("tf.summary"),
    "WriteSummary": UnsupportedOp("tf.summary"),
    "LookupTableFindV2": UnsupportedOp("a lookup table"),
    "IteratorGetNext": UnsupportedOp("an iterator over a dataset"),
    "EncodeJpegVariableQuality": UnsupportedOp("tf.image.adjust_jpeg_quality"),
}
"""Ops that run on the host, outside of any program of XLA."""

LACKING: Mapping[str, UnsupportedOp] = {
    **HOST,
    "ResizeBicubic": UnsupportedOp('resizing with "bicubic"', _RESIZED),
    "ResizeArea": UnsupportedOp('resizing with "area"', _RESIZED),
    "ScaleAndTranslate": UnsupportedOp('resizing with "lanczos3", "lanczos5", "gaussian" or antialias=True', _RESIZED),
    "CropAndResize": UnsupportedOp("tf.image.crop_and_resize", "slices of a known size with tf.image.resize"),
    "ImageProjectiveTransformV3": UnsupportedOp(
        "affine_transform or perspective_transform of keras.ops.image", _IN_DATA
    ),
    "DrawBoundingBoxesV2": UnsupportedOp("tf.image.draw_bounding_boxes", _BEFORE),
    "SampleDistortedBoundingBoxV2": UnsupportedOp("tf.image.sample_distorted_bounding_box", _IN_DATA),
    "CombinedNonMaxSuppression": UnsupportedOp(
        "tf.image.combined_non_max_suppression", "tf.image.non_max_suppression_padded(..., pad_to_max_output_size=True)"
    ),
    "RandomGamma": UnsupportedOp("tf.random.gamma", _DRAWN),
    "StatelessRandomGammaV2": UnsupportedOp("a gamma or beta distribution (tf.random.stateless_gamma)", _DRAWN),
    "StatelessRandomGammaV3": UnsupportedOp("a gamma or beta distribution (keras.random.gamma, CutMix, MixUp)", _DRAWN),
    "RandomPoissonV2": UnsupportedOp("tf.random.poisson", _DRAWN),
    "StatelessRandomPoisson": UnsupportedOp("tf.random.stateless_poisson", _DRAWN),
    "StatelessRandomBinomial": UnsupportedOp("a binomial distribution (keras.random.binomial)", _DRAWN),
    "LogUniformCandidateSampler": UnsupportedOp(
        "the sampler of tf.nn.nce_loss and tf.nn.sampled_softmax_loss",
        "the loss over all classes (tf.nn.sparse_softmax_cross_entropy_with_logits), or draw sampled_values= in "
        "the input pipeline",
    ),
    "SegmentSum": UnsupportedOp("tf.math.segment_sum", _SEGMENTS.format("sum")),
    "SegmentMean": UnsupportedOp("tf.math.segment_mean", "tf.math.unsorted_segment_mean(data, ids, num_segments)"),
    "SegmentMax": UnsupportedOp("tf.math.segment_max", _SEGMENTS.format("max")),
    "SegmentMin": UnsupportedOp("tf.math.segment_min", "tf.math.unsorted_segment_min(data, ids, num_segments)"),
    "SegmentProd": UnsupportedOp("tf.math.segment_prod", "tf.math.unsorted_segment_prod(data, ids, num_segments)"),
    "SparseSegmentSum": UnsupportedOp("tf.sparse.segment_sum", _SEGMENTS.format("sum")),
    "SparseSegmentMean": UnsupportedOp("tf.nn.embedding_lookup_sparse", f"tf.nn.embedding_lookup: {_PADDED}"),
    "SparseTensorDenseMatMul": UnsupportedOp("tf.sparse.sparse_dense_matmul", "tf.matmul with a dense matrix"),
    "RaggedTensorToTensor": UnsupportedOp("a ragged tensor", _PADDED),
    "LogMatrixDeterminant": UnsupportedOp("tf.linalg.slogdet", _DECOMPOSED),
    "MatrixDeterminant": UnsupportedOp("tf.linalg.det", _DECOMPOSED),
    "MatrixSquareRoot": UnsupportedOp("tf.linalg.sqrtm", "tf.linalg.eigh, if the matrix is symmetric"),
    "Eig": UnsupportedOp("tf.linalg.eig", "tf.linalg.eigh, if the matrix is symmetric"),
    "ResourceGatherNd": UnsupportedOp(
        "tf.gather_nd of a variable", "tf.gather_nd(tf.convert_to_tensor(variable), ...)"
    ),
    "UniqueWithCounts": UnsupportedOp("tf.unique_with_counts", _BEFORE),
    "DenseToDenseSetOperation": UnsupportedOp("tf.sets", _BEFORE),
    "HistogramFixedWidth": UnsupportedOp("tf.histogram_fixed_width", "tf.math.bincount(..., minlength=N, maxlength=N)"),
    "EditDistance": UnsupportedOp("tf.edit_distance", _BEFORE),
    "CTCGreedyDecoder": UnsupportedOp("tf.nn.ctc_greedy_decoder", _BEFORE),
    "CTCBeamSearchDecoder": UnsupportedOp("tf.nn.ctc_beam_search_decoder", _BEFORE),
    "MaxPoolWithArgmax": UnsupportedOp("tf.nn.max_pool_with_argmax", "tf.nn.max_pool2d, if the indices are not needed"),
    "FractionalMaxPool": UnsupportedOp("tf.nn.fractional_max_pool", "tf.nn.max_pool2d"),
    "Dilation2D": UnsupportedOp("tf.nn.dilation2d"),
    "BesselI0": UnsupportedOp("tf.math.bessel_i0", "tf.exp(tf.abs(x)) * tf.math.bessel_i0e(x)"),
    "Dawsn": UnsupportedOp("tf.math.special.dawsn"),
    "Expint": UnsupportedOp("tf.math.special.expint"),
    "FresnelCos": UnsupportedOp("tf.math.special.fresnel_cos"),
    "Spence": UnsupportedOp("tf.math.special.spence"),
}
"""Ops that XLA compiles on no device."""

TPU_ONLY: Mapping[str, UnsupportedOp] = {
    "ResizeNearestNeighborGrad": UnsupportedOp(
        'the gradient of resizing with "nearest" (tf.image.resize, keras.layers.Resizing)',
        "keras.layers.UpSampling2D, which repeats pixels, if the new size is a multiple",
    ),
    "InplaceAdd": UnsupportedOp("tf.raw_ops.InplaceAdd", "tf.tensor_scatter_nd_add"),
    "InplaceUpdate": UnsupportedOp("tf.raw_ops.InplaceUpdate", "tf.tensor_scatter_nd_update"),
}
"""Ops that XLA compiles on a TPU, and not on a CPU (core/tpu/kernels/image_resize_ops.cc, xla/inplace_ops.cc)."""

_KNOWN = {**LACKING, **TPU_ONLY}


def of(op: str) -> UnsupportedOp | None:
    """The entry for an op that XLA:CPU refuses."""
    return _KNOWN.get(op)


def where(ops: list[str]) -> str:
    """Whether a TPU also refuses these ops, which XLA:CPU refuses."""
    if any(op in LACKING for op in ops):
        return EVERYWHERE
    return ONLY_CPU if all(op in TPU_ONLY for op in ops) else UNKNOWN
