"""TensorFlow's ops that XLA cannot compile: as people call them, where that holds, and what there is in their place.

Tried in TensorFlow 2.21 and Keras 3.15, on a CPU. Read in TensorFlow's source: kernels for XLA are registered for all
devices alike (compiler/tf2xla/kernels), and a few more for a TPU alone (core/tpu/kernels: TPU_ALONE). So what a CPU
lacks and is named in LACKING, a TPU with the tensorflow-tpu there is (2.20) lacks as well. As people have met it on
TPUs: tensorflow/tensorflow#32240 (LogUniformCandidateSampler), #33402 (determinants). TensorFlow's main branch has got
kernels for determinants and for "bicubic" in 2026 (tensorflow/tensorflow#126101).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVERYWHERE = "on a TPU this would fail too"
AT_HOME = "only at home: a TPU has this op"
UNKNOWN = "whether a TPU can is not known"


@dataclass(frozen=True)
class Op:
    """`called`: as it stands in people's code; `instead`: what XLA does compile, or where else to do it."""

    called: str
    instead: str = ""


_IN_DATA = "do it in the data's pipeline: dataset.map(lambda x, y: (layer(x), y)), before the step"
_DRAWN = f"{_IN_DATA}; or draw from tf.random.normal or tf.random.uniform, which XLA has"
_SEGMENTS = "tf.math.unsorted_segment_{0}(data, ids, num_segments), or keras.ops.segment_{0} without sorted=True"
_RESIZED = 'interpolation="bilinear"; or resize in the data\'s pipeline'
_DECOMPOSED = "tf.linalg.qr: the determinant's size is the product of the diagonal of r"
_PADDED = "pad to one length, and multiply with the mask (tf.sequence_mask)"
_BEFORE = "do it before the step, in the data's pipeline, or after it, with what the step returns"

HOST: Mapping[str, Op] = {
    "PyFunc": Op("tf.numpy_function"),
    "PyFuncStateless": Op("tf.numpy_function"),
    "EagerPyFunc": Op("tf.py_function"),
    "PrintV2": Op("tf.print"),
    "StringFormat": Op("tf.print or tf.strings.format"),
    "AsString": Op("tf.strings.as_string"),
    "StringLength": Op("tf.strings.length"),
    "Timestamp": Op("tf.timestamp"),
    "WriteScalarSummary": Op("tf.summary"),
    "WriteSummary": Op("tf.summary"),
    "LookupTableFindV2": Op("a lookup table"),
    "IteratorGetNext": Op("an iterator over a dataset"),
    "EncodeJpegVariableQuality": Op("tf.image.adjust_jpeg_quality"),
}
"""Ops that run on the host, outside of any program of XLA."""

LACKING: Mapping[str, Op] = {
    **HOST,
    "ResizeBicubic": Op('resizing with "bicubic"', _RESIZED),
    "ResizeArea": Op('resizing with "area"', _RESIZED),
    "ScaleAndTranslate": Op('resizing with "lanczos3", "lanczos5", "gaussian" or antialias=True', _RESIZED),
    "CropAndResize": Op("tf.image.crop_and_resize", "slices of a known size with tf.image.resize"),
    "ImageProjectiveTransformV3": Op("affine_transform or perspective_transform of keras.ops.image", _IN_DATA),
    "DrawBoundingBoxesV2": Op("tf.image.draw_bounding_boxes", _BEFORE),
    "SampleDistortedBoundingBoxV2": Op("tf.image.sample_distorted_bounding_box", _IN_DATA),
    "CombinedNonMaxSuppression": Op(
        "tf.image.combined_non_max_suppression", "tf.image.non_max_suppression_padded(..., pad_to_max_output_size=True)"
    ),
    "RandomGamma": Op("tf.random.gamma", _DRAWN),
    "StatelessRandomGammaV2": Op("a gamma or beta distribution (tf.random.stateless_gamma)", _DRAWN),
    "StatelessRandomGammaV3": Op("a gamma or beta distribution (keras.random.gamma, CutMix, MixUp)", _DRAWN),
    "RandomPoissonV2": Op("tf.random.poisson", _DRAWN),
    "StatelessRandomPoisson": Op("tf.random.stateless_poisson", _DRAWN),
    "StatelessRandomBinomial": Op("a binomial distribution (keras.random.binomial)", _DRAWN),
    "LogUniformCandidateSampler": Op(
        "the sampler of tf.nn.nce_loss and tf.nn.sampled_softmax_loss",
        "the loss over all classes (tf.nn.sparse_softmax_cross_entropy_with_logits), or draw sampled_values= in the "
        "data's pipeline",
    ),
    "SegmentSum": Op("tf.math.segment_sum", _SEGMENTS.format("sum")),
    "SegmentMean": Op("tf.math.segment_mean", "tf.math.unsorted_segment_mean(data, ids, num_segments)"),
    "SegmentMax": Op("tf.math.segment_max", _SEGMENTS.format("max")),
    "SegmentMin": Op("tf.math.segment_min", "tf.math.unsorted_segment_min(data, ids, num_segments)"),
    "SegmentProd": Op("tf.math.segment_prod", "tf.math.unsorted_segment_prod(data, ids, num_segments)"),
    "SparseSegmentSum": Op("tf.sparse.segment_sum", _SEGMENTS.format("sum")),
    "SparseSegmentMean": Op("tf.nn.embedding_lookup_sparse", f"tf.nn.embedding_lookup: {_PADDED}"),
    "SparseTensorDenseMatMul": Op("tf.sparse.sparse_dense_matmul", "tf.matmul with a dense matrix"),
    "RaggedTensorToTensor": Op("a ragged tensor", _PADDED),
    "LogMatrixDeterminant": Op("tf.linalg.slogdet", _DECOMPOSED),
    "MatrixDeterminant": Op("tf.linalg.det", _DECOMPOSED),
    "MatrixSquareRoot": Op("tf.linalg.sqrtm", "tf.linalg.eigh, where the matrix is symmetric"),
    "Eig": Op("tf.linalg.eig", "tf.linalg.eigh, where the matrix is symmetric"),
    "ResourceGatherNd": Op("tf.gather_nd of a variable", "tf.gather_nd(tf.convert_to_tensor(variable), ...)"),
    "UniqueWithCounts": Op("tf.unique_with_counts", _BEFORE),
    "DenseToDenseSetOperation": Op("tf.sets", _BEFORE),
    "HistogramFixedWidth": Op("tf.histogram_fixed_width", "tf.math.bincount(..., minlength=N, maxlength=N)"),
    "EditDistance": Op("tf.edit_distance", _BEFORE),
    "CTCGreedyDecoder": Op("tf.nn.ctc_greedy_decoder", _BEFORE),
    "CTCBeamSearchDecoder": Op("tf.nn.ctc_beam_search_decoder", _BEFORE),
    "MaxPoolWithArgmax": Op("tf.nn.max_pool_with_argmax", "tf.nn.max_pool2d, where the places are not needed"),
    "FractionalMaxPool": Op("tf.nn.fractional_max_pool", "tf.nn.max_pool2d"),
    "Dilation2D": Op("tf.nn.dilation2d"),
    "BesselI0": Op("tf.math.bessel_i0", "tf.exp(tf.abs(x)) * tf.math.bessel_i0e(x)"),
    "Dawsn": Op("tf.math.special.dawsn"),
    "Expint": Op("tf.math.special.expint"),
    "FresnelCos": Op("tf.math.special.fresnel_cos"),
    "Spence": Op("tf.math.special.spence"),
}
"""Ops that XLA compiles on no device."""

TPU_ALONE: Mapping[str, Op] = {
    "ResizeNearestNeighborGrad": Op(
        'the gradient of resizing with "nearest" (tf.image.resize, keras.layers.Resizing)',
        "keras.layers.UpSampling2D, which repeats, where the size is a multiple",
    ),
    "InplaceAdd": Op("tf.raw_ops.InplaceAdd", "tf.tensor_scatter_nd_add"),
    "InplaceUpdate": Op("tf.raw_ops.InplaceUpdate", "tf.tensor_scatter_nd_update"),
}
"""Ops that XLA compiles on a TPU, and not on a CPU (core/tpu/kernels/image_resize_ops.cc, xla/inplace_ops.cc)."""

_KNOWN = {**LACKING, **TPU_ALONE}


def of(op: str) -> Op | None:
    """What is known of an op that a CPU's XLA refuses."""
    return _KNOWN.get(op)


def where(ops: list[str]) -> str:
    """Whether a TPU refuses these ops, which XLA refuses on a CPU, as well."""
    if any(op in LACKING for op in ops):
        return EVERYWHERE
    return AT_HOME if all(op in TPU_ALONE for op in ops) else UNKNOWN
