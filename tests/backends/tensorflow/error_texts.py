"""Texts of errors that only a TPU raises, as users reported them or as in TensorFlow's source, each with its origin."""

from __future__ import annotations

import tensorflow as tf

TEXTS = {
    # leondgarse/keras_cv_attention_models#8: VOLO under TPUStrategy
    "op of a gradient": (
        tf.errors.InvalidArgumentError,
        "9 root error(s) found.\n  (0) Invalid argument: {{function_node __inference_train_function_137027}} "
        "Compilation failure: Detected unsupported operations when trying to compile graph "
        "cluster_train_function_5876961707884240013[] on XLA_TPU_JIT: ExtractImagePatches (No registered "
        "'ExtractImagePatches' OpKernel for XLA_TPU_JIT devices compatible with node {{node "
        "gradient_tape/model/unfold_matmul_fold_3/ExtractImagePatches}}\n\t (OpKernel was found, but attributes didn't "
        "match) Requested Attributes: T=DT_INT64, _xla_inferred_shapes=[[1,?,?,9]]){{node "
        "gradient_tape/model/unfold_matmul_fold_3/ExtractImagePatches}}One approach is to outside compile the "
        "unsupported ops to run on CPUs by enabling soft placement `tf.config.set_soft_device_placement(True)`. This "
        "has a potential performance penalty.\n\tTPU compilation failed"
        "\n\t [[tpu_compile_succeeded_assert/_17543318848583046929/_5]]",
    ),
    # compiler/tf2xla/kernels/strided_slice_op.cc
    "slice": (
        tf.errors.InvalidArgumentError,
        "Compilation failure: XLA can't deduce compile time constant output shape for strided slice: [?,512,512,3], "
        "output shape must be a compile-time constant",
    ),
    # compiler/tf2xla/kernels/tensor_list_ops.cc
    "tensor list": (
        tf.errors.InvalidArgumentError,
        "XLA compilation requires a fixed tensor list size. Set the number of elements. This could also happen if "
        "you're using a TensorArray in a while loop that does not have its maximum_iteration set, you can fix this by "
        "setting maximum_iteration to a suitable value.",
    ),
    # tensorflow/tpu#385
    "memory": (
        tf.errors.ResourceExhaustedError,
        "Compilation failure: Ran out of memory in memory space hbm. Used 8.38G of 8.00G hbm. Exceeded hbm capacity by "
        "385.25M.",
    ),
    # libtpu of 2026, compiling ahead of time (seen with the preflight's compiler)
    "memory of today": (
        tf.errors.ResourceExhaustedError,
        "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries (183.87G) "
        "exceeds available HBM (15.75G).",
    ),
    # tensorflow/tensorflow#96203: plain TensorFlow on a TPU VM
    "no kernels": (
        tf.errors.NotFoundError,
        "TPUs not found in the cluster. Failed in initialization: No OpKernel was registered to support Op "
        "'ConfigureDistributedTPU' used by {{node ConfigureDistributedTPU}}",
    ),
    # grpc's RESOURCE_EXHAUSTED has nothing to do with memory
    "a long message": (
        tf.errors.ResourceExhaustedError,
        "Received message larger than max (4194305 vs. 4194304)",
    ),
}
