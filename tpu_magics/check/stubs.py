"""What the libraries' functions, methods and attributes give.

What lives here: tables, and the few rules that fill them out. What does not: how code is walked (walker.py). Read in
torch 2.9, torch_xla 2.9, transformers 5.23, accelerate 1.15 and TensorFlow 2.21; what is not listed is not known, and
nothing is said of it.
"""

from __future__ import annotations

from functools import lru_cache

from tpu_magics.check.values import (
    ACCELERATOR,
    ARGUMENTS,
    ARRAY,
    COLLATOR,
    DATASET,
    DEVICE,
    LIST,
    LOADER,
    MODEL,
    NO_IDEA,
    NUMBER,
    OPTIMIZER,
    OUTPUT,
    RESOLVER,
    SCHEDULER,
    STRATEGY,
    TENSOR,
    TFDATA,
    TOKENIZER,
    TRAINER,
    Value,
)

XM = "torch_xla.core.xla_model."
XR = "torch_xla.runtime."

# -- what calls of a name give: exact names first, then the longest prefix ---------------------------------------------

_NUMBER = Value(NUMBER)
_READ = Value(NUMBER, read=True)
_TORCH = Value(TENSOR, lib="torch")
_TORCH_BOOL = Value(TENSOR, lib="torch", dtype="bool")
_TORCH_INT = Value(TENSOR, lib="torch", dtype="int")
_TORCH_FLOAT = Value(TENSOR, lib="torch", dtype="float")
_TORCH_OUTPUT = Value(OUTPUT, lib="torch")
_TF = Value(TENSOR, lib="tf")
_TF_BOOL = Value(TENSOR, lib="tf", dtype="bool")
_TF_INT = Value(TENSOR, lib="tf", dtype="int")
_TF_OUTPUT = Value(OUTPUT, lib="tf")
_TORCH_MODEL = Value(MODEL, lib="torch")
_TF_MODEL = Value(MODEL, lib="tf")
_XLA = Value(DEVICE, where="device")
_RANK = Value(NUMBER, name="%rank")
_VARIES = Value(NUMBER, varies=True)

_BOOLS = "eq ne lt le gt ge isnan isinf isfinite isclose logical_and logical_or logical_not logical_xor isin greater " \
    "less greater_equal less_equal not_equal is_nan is_inf is_finite isneginf isposinf " \
    "signbit equal_ any all"  # fmt: skip
_INTS = "argmax argmin argsort searchsorted bucketize bincount randint randint_like arange randperm one_hot " \
    "multinomial range shape rank size"  # fmt: skip
_MANY = "topk sort split chunk unbind tensor_split max_pool2d_with_indices kthvalue mode median svd qr eigh meshgrid " \
    "broadcast_tensors frexp std_mean var_mean lstm gru unstack top_k moments unique unique_with_counts " \
    "nonzero_tuple hsplit vsplit dsplit split_with_sizes aminmax cummax cummin linalg_svd"  # fmt: skip

_EXACT: dict[str, Value] = {
    **dict.fromkeys(("torch." + one for one in _BOOLS.split()), _TORCH_BOOL),
    **dict.fromkeys(("torch." + one for one in _INTS.split()), _TORCH_INT),
    **dict.fromkeys(("torch." + one for one in _MANY.split()), _TORCH_OUTPUT),
    "torch.all": _TORCH_BOOL,
    "torch.any": _TORCH_BOOL,
    **dict.fromkeys(
        ("torch." + one for one in [
            "is_tensor", "is_grad_enabled", "is_floating_point", "is_complex", "is_storage",
            "is_inference_mode_enabled", "numel", "manual_seed", "seed", "initial_seed", "get_num_threads",
            "set_num_threads", "get_default_dtype", "set_default_dtype", "set_default_device", "set_grad_enabled",
            "set_printoptions", "iinfo", "finfo", "Size", "typename", "result_type", "can_cast", "promote_types",
            "get_default_device", "are_deterministic_algorithms_enabled", "use_deterministic_algorithms",
            "is_autocast_enabled", "get_rng_state", "set_rng_state", "set_float32_matmul_precision", "save",
            "no_grad", "enable_grad", "inference_mode", "autocast", "Generator", "Stream", "device", "dtype",
            "is_distributed", "is_signed", "is_same_size", "is_autocast_cpu_enabled", "is_deterministic",
            "broadcast_shapes", "is_conj", "is_neg", "is_inference", "get_device", "is_warn_always_enabled",
            "get_deterministic_debug_mode", "get_float32_matmul_precision", "get_num_interop_threads",
            "set_deterministic_debug_mode", "set_warn_always", "set_flush_denormal",
            "is_deterministic_algorithms_warn_only_enabled", "compiled_with_cxx11_abi"
        ]),
        _NUMBER,
    ),
    "torch.finfo": Value(NUMBER),
    "torch.from_numpy": _TORCH,
    "torch.load": NO_IDEA,
    "torch.equal": Value(NUMBER, read=True, name="torch.equal"),
    "torch.allclose": Value(NUMBER, read=True, name="torch.allclose"),
    "torch.is_nonzero": Value(NUMBER, read=True, name="torch.is_nonzero"),
    "torch.nn.functional.one_hot": _TORCH_INT,
    "torch.nn.functional.max_pool2d_with_indices": _TORCH_OUTPUT,
    "torch.nn.Parameter": _TORCH,
    "torch.nn.parameter.Parameter": _TORCH,
    "torch.nn.ParameterList": Value(LIST, item=_TORCH),
    "torch.nn.ModuleList": Value(LIST, item=_TORCH_MODEL),
    "torch.nn.ModuleDict": Value(LIST, item=_TORCH_MODEL),
    "torch.utils.data.DataLoader": Value(LOADER, lib="torch"),
    "torch.utils.data.random_split": Value(LIST, item=Value(DATASET, lib="torch")),
    "torch.utils.data.default_collate": Value(OUTPUT, lib="torch", where="host"),
    "torch.nn.utils.rnn.pad_sequence": _TORCH,
    "torch.nn.utils.rnn.pack_padded_sequence": _TORCH_OUTPUT,
    "torch.nn.utils.rnn.pad_packed_sequence": _TORCH_OUTPUT,
    "torch.nn.utils.clip_grad_norm_": _TORCH,
    "torch.nn.utils.parameters_to_vector": _TORCH,
    "torch.autograd.grad": Value(LIST, item=_TORCH),
    "torch_xla.device": _XLA,
    XM + "xla_device": _XLA,
    XM + "get_ordinal": _RANK,
    XM + "get_local_ordinal": _RANK,
    XM + "is_master_ordinal": _RANK,
    XM + "xrt_world_size": _NUMBER,
    XM + "all_reduce": _TORCH,
    XM + "all_gather": _TORCH,
    XM + "reduce_scatter": _TORCH,
    XM + "all_to_all": _TORCH,
    XM + "collective_permute": _TORCH,
    XM + "send_cpu_data_to_device": _TORCH_OUTPUT,
    XM + "mesh_reduce": Value(NUMBER, read=True),
    XM + "get_memory_info": _NUMBER,
    XR + "global_ordinal": _RANK,
    XR + "local_ordinal": _RANK,
    XR + "process_index": _RANK,
    "torch.distributed.get_rank": _RANK,
    "torch_xla.distributed.parallel_loader.MpDeviceLoader": Value(LOADER, lib="torch", prepared=True),
    "torch_xla.distributed.parallel_loader.ParallelLoader": Value(LOADER, lib="torch", prepared=True),
    "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel": _TORCH_MODEL,
    "accelerate.Accelerator": Value(ACCELERATOR),
    "accelerate.PartialState": Value(ACCELERATOR),
    "accelerate.AcceleratorState": Value(ACCELERATOR),
    "accelerate.utils.send_to_device": Value(OUTPUT, lib="torch", where="device"),
    "transformers.Trainer": Value(TRAINER),
    "transformers.Seq2SeqTrainer": Value(TRAINER),
    "transformers.TrainingArguments": Value(ARGUMENTS),
    "transformers.Seq2SeqTrainingArguments": Value(ARGUMENTS),
    "transformers.default_data_collator": Value(OUTPUT, lib="torch", where="host"),
    **dict.fromkeys(
        ("tensorflow.shape", "tensorflow.size", "tensorflow.rank", "keras.ops.shape"),
        Value(TENSOR, lib="tf", dtype="int", shape=True),
    ),
    **dict.fromkeys(
        ("torch." + one for one in [
            "rand", "randn", "zeros", "ones", "empty", "linspace", "logspace", "normal", "eye", "rand_like",
            "randn_like", "sigmoid", "softmax", "log_softmax", "exp", "log", "sqrt", "sin", "cos", "tanh", "mean",
            "std", "var", "norm"
        ]),
        _TORCH_FLOAT,
    ),
    **dict.fromkeys(
        ("torch.nn.functional." + one for one in [
            "cross_entropy", "mse_loss", "l1_loss", "nll_loss", "binary_cross_entropy", "smooth_l1_loss",
            "binary_cross_entropy_with_logits", "kl_div", "huber_loss", "relu", "gelu", "silu", "sigmoid", "tanh",
            "softmax", "log_softmax", "dropout", "layer_norm", "batch_norm", "normalize", "softplus", "leaky_relu",
            "elu", "linear"
        ]),
        _TORCH_FLOAT,
    ),
    **dict.fromkeys(
        ("tensorflow." + one for one in [
            "reduce_mean", "exp", "sqrt", "sigmoid", "tanh", "random.normal", "random.uniform", "math.log",
            "nn.softmax", "nn.relu", "nn.sigmoid", "nn.log_softmax"
        ]),
        Value(TENSOR, lib="tf", dtype="float"),
    ),
    "tensorflow.data.Dataset": Value(TFDATA),
    "tensorflow.data.TFRecordDataset": Value(TFDATA),
    "tensorflow.data.TextLineDataset": Value(TFDATA),
    "tensorflow.Variable": _TF,
    "tensorflow.is_tensor": _NUMBER,
    "tensorflow.executing_eagerly": _NUMBER,
    "tensorflow.print": _NUMBER,
    "tensorflow.get_static_value": _NUMBER,
    "tensorflow.GradientTape": NO_IDEA,
    "tensorflow.clip_by_global_norm": _TF_OUTPUT,
    "tensorflow.function": NO_IDEA,
    "tensorflow.py_function": _TF,
    "tensorflow.group": NO_IDEA,
    "tensorflow.no_op": NO_IDEA,
    "tensorflow.distribute.get_strategy": Value(STRATEGY, name="tensorflow.distribute.get_strategy"),
    "keras.utils.image_dataset_from_directory": Value(TFDATA),
    "keras.preprocessing.image_dataset_from_directory": Value(TFDATA),
    "keras.utils.text_dataset_from_directory": Value(TFDATA),
    "keras.utils.timeseries_dataset_from_array": Value(TFDATA),
    "keras.Input": Value(TENSOR, lib="tf", name="keras.Input"),
    "keras.layers.Input": Value(TENSOR, lib="tf", name="keras.Input"),
    "keras.models.load_model": _TF_MODEL,
    "keras.models.clone_model": _TF_MODEL,
    "datasets.load_dataset": Value(DATASET),
    "datasets.load_from_disk": Value(DATASET),
    "datasets.Dataset.from_dict": Value(DATASET),
    "datasets.Dataset.from_pandas": Value(DATASET),
    "datasets.Dataset.from_list": Value(DATASET),
    "datasets.concatenate_datasets": Value(DATASET),
    "tensorflow_datasets.load": Value(TFDATA),
    **dict.fromkeys(
        ("time.time", "time.perf_counter", "time.monotonic", "random.random", "random.randint", "random.uniform",
         "random.choice", "random.randrange", "random.gauss", "datetime.datetime.now"),
        _VARIES,
    ),
}  # fmt: skip

# A prefix that ends in "." stands for what lies directly or deeper below; `Name` forms are told by their capital.
_BELOW: dict[str, tuple[Value, Value]] = {
    # prefix: (a function, a class)
    "torch.": (_TORCH, NO_IDEA),
    "torch.nn.": (NO_IDEA, _TORCH_MODEL),
    "torch.nn.functional.": (_TORCH, NO_IDEA),
    "torch.nn.init.": (_TORCH, NO_IDEA),
    "torch.nn.parallel.": (NO_IDEA, _TORCH_MODEL),
    "torch.linalg.": (_TORCH, NO_IDEA),
    "torch.special.": (_TORCH, NO_IDEA),
    "torch.fft.": (_TORCH, NO_IDEA),
    "torch.sparse.": (_TORCH, NO_IDEA),
    "torch.ops.": (NO_IDEA, NO_IDEA),
    "torch.optim.": (NO_IDEA, Value(OPTIMIZER, lib="torch")),
    "torch.optim.lr_scheduler.": (NO_IDEA, Value(SCHEDULER, lib="torch")),
    "torch.utils.": (NO_IDEA, NO_IDEA),
    "torch.utils.data.": (NO_IDEA, Value(DATASET, lib="torch")),
    "torch.cuda.": (_NUMBER, NO_IDEA),
    "torch.backends.": (_NUMBER, NO_IDEA),
    "torch.distributed.": (_NUMBER, NO_IDEA),
    "torch.jit.": (NO_IDEA, NO_IDEA),
    "torch.onnx.": (NO_IDEA, NO_IDEA),
    "torch.fx.": (NO_IDEA, NO_IDEA),
    "torch.autograd.": (NO_IDEA, NO_IDEA),
    "torch.amp.": (NO_IDEA, NO_IDEA),
    "torch.compiler.": (_NUMBER, NO_IDEA),
    "torch.hub.": (_TORCH_MODEL, NO_IDEA),
    "torch.random.": (NO_IDEA, NO_IDEA),
    "torch.serialization.": (NO_IDEA, NO_IDEA),
    "torch.library.": (NO_IDEA, NO_IDEA),
    "torch.export.": (NO_IDEA, NO_IDEA),
    "torch.func.": (NO_IDEA, NO_IDEA),
    "torch.distributions.": (NO_IDEA, NO_IDEA),
    "torch.profiler.": (NO_IDEA, NO_IDEA),
    "torch.testing.": (NO_IDEA, NO_IDEA),
    "torch.multiprocessing.": (NO_IDEA, NO_IDEA),
    "torch._dynamo.": (NO_IDEA, NO_IDEA),
    "torch._C.": (NO_IDEA, NO_IDEA),
    "torch._utils.": (NO_IDEA, NO_IDEA),
    "torch._inductor.": (NO_IDEA, NO_IDEA),
    "torch.mps.": (_NUMBER, NO_IDEA),
    "torch.xpu.": (_NUMBER, NO_IDEA),
    "torchvision.models.": (_TORCH_MODEL, NO_IDEA),
    "torchvision.datasets.": (NO_IDEA, Value(DATASET, lib="torch")),
    "timm.": (_TORCH_MODEL, NO_IDEA),
    "torch_xla.amp.syncfree.": (NO_IDEA, Value(OPTIMIZER, lib="torch")),
    XR: (_NUMBER, NO_IDEA),
    "numpy.": (Value(ARRAY), Value(ARRAY)),
    "pandas.": (Value(ARRAY), Value(ARRAY)),
    "tensorflow.": (_TF, NO_IDEA),
    "tensorflow.math.": (_TF, NO_IDEA),
    "tensorflow.nn.": (_TF, NO_IDEA),
    "tensorflow.config.": (_NUMBER, NO_IDEA),
    "tensorflow.io.": (_TF, NO_IDEA),
    **dict.fromkeys(
        (
            "tensorflow." + one + "."
            for one in ["linalg", "signal", "image", "random", "strings", "sparse", "sets", "experimental.numpy"]
        ),
        (_TF, NO_IDEA),
    ),
    "tensorflow.data.": (NO_IDEA, NO_IDEA),
    "tensorflow.data.Dataset.": (Value(TFDATA), NO_IDEA),
    "tensorflow.distribute.": (NO_IDEA, Value(STRATEGY)),
    "tensorflow.distribute.experimental.": (NO_IDEA, Value(STRATEGY)),
    "tensorflow.distribute.cluster_resolver.": (NO_IDEA, Value(RESOLVER)),
    "tensorflow.distribute.cluster_resolver.TPUClusterResolver.": (Value(RESOLVER), NO_IDEA),
    "tensorflow.tpu.": (NO_IDEA, NO_IDEA),
    "tensorflow.train.": (NO_IDEA, NO_IDEA),
    "tensorflow.saved_model.": (NO_IDEA, NO_IDEA),
    "tensorflow.summary.": (NO_IDEA, NO_IDEA),
    "tensorflow.debugging.": (NO_IDEA, NO_IDEA),
    "tensorflow.dtypes.": (NO_IDEA, NO_IDEA),
    "tensorflow.compat.": (NO_IDEA, NO_IDEA),
    "tensorflow.experimental.": (NO_IDEA, NO_IDEA),
    "tensorflow.autograph.": (NO_IDEA, NO_IDEA),
    "tensorflow.estimator.": (NO_IDEA, NO_IDEA),
    "tensorflow.lite.": (NO_IDEA, NO_IDEA),
    "tensorflow.test.": (NO_IDEA, NO_IDEA),
    "tensorflow.errors.": (NO_IDEA, NO_IDEA),
    "tensorflow.profiler.": (NO_IDEA, NO_IDEA),
    "tensorflow.keras.": (NO_IDEA, NO_IDEA),
    "keras.": (NO_IDEA, NO_IDEA),
    "keras.layers.": (NO_IDEA, _TF_MODEL),
    "keras.models.": (NO_IDEA, _TF_MODEL),
    "keras.applications.": (NO_IDEA, _TF_MODEL),
    "keras.losses.": (_TF, _TF_MODEL),
    "keras.metrics.": (_TF, _TF_MODEL),
    "keras.optimizers.": (NO_IDEA, Value(OPTIMIZER, lib="tf")),
    "keras.optimizers.legacy.": (NO_IDEA, Value(OPTIMIZER, lib="tf")),
    "keras.optimizers.schedules.": (NO_IDEA, Value(SCHEDULER, lib="tf")),
    "keras.activations.": (_TF, NO_IDEA),
    "keras.ops.": (_TF, NO_IDEA),
    "keras.Model": (_TF_MODEL, _TF_MODEL),
    "keras.Sequential": (_TF_MODEL, _TF_MODEL),
    "keras_nlp.models.": (NO_IDEA, _TF_MODEL),
    "keras_hub.models.": (NO_IDEA, _TF_MODEL),
}
_KERAS_ITSELF = {"keras.Model": _TF_MODEL, "keras.Sequential": _TF_MODEL}


@lru_cache(maxsize=50_000)
def call(name: str) -> Value:
    """What a call of this canonical name gives; NO_IDEA where that is not known."""
    found = _EXACT.get(name) or _KERAS_ITSELF.get(name)
    if found is not None:
        return found
    root = name.partition(".")[0]
    if root == "transformers":
        return _transformers(name)
    if name.startswith(("torch.get_", "torch.is_", "torch.set_")):
        return _NUMBER
    if name.startswith(("torch._", "torch.autocast_")):
        return NO_IDEA
    if root == "tensorflow" or root == "tf":
        special = _tensorflow(name)
        if special is not None:
            return special
    return _below(name)


def _below(name: str) -> Value:
    prefix = name
    while "." in prefix:
        prefix = prefix.rpartition(".")[0]
        pair = _BELOW.get(prefix + ".")
        if pair is not None:
            last = name.rpartition(".")[2]
            # Deeper names below a prefix are methods of a class there: not what the table is about.
            direct = name == f"{prefix}.{last}"
            return pair[1 if last[:1].isupper() else 0] if direct else NO_IDEA
    return NO_IDEA


_TF_BOOLS = frozenset(_BOOLS.split()) | {"reduce_any", "reduce_all", "is_nan"}
_TF_INTS = frozenset(_INTS.split()) | {"argmax", "argmin"}
_TF_MANY = frozenset(_MANY.split()) | {"unique", "unstack", "split"}


def _tensorflow(name: str) -> Value | None:
    last = name.rpartition(".")[2]
    if name.startswith("tensorflow.data.Dataset."):
        return Value(TFDATA)
    if name.count(".") > 2 or (name.count(".") == 2 and not name.startswith(("tensorflow.math.", "tensorflow.nn."))):
        return None
    return _TF_BOOL if last in _TF_BOOLS else _TF_INT if last in _TF_INTS else _TF_OUTPUT if last in _TF_MANY else None


_MAKERS = ("from_pretrained", "from_config")


def _transformers(name: str) -> Value:
    parts = name.split(".")
    owner = parts[1] if len(parts) > 1 else ""
    if len(parts) == 3 and parts[2] not in _MAKERS:
        return NO_IDEA
    if len(parts) > 3:
        return NO_IDEA
    if owner.startswith("DataCollator"):
        return Value(COLLATOR)
    if owner.endswith(("Tokenizer", "TokenizerFast", "Processor", "FeatureExtractor")):
        return Value(TOKENIZER)
    if owner.startswith("get_") and owner.endswith("schedule"):
        return Value(SCHEDULER, lib="torch")
    if owner.startswith("get_") and "schedule" in owner:
        return Value(SCHEDULER, lib="torch")
    if owner in ("AdamW", "Adafactor"):
        return Value(OPTIMIZER, lib="torch")
    if owner.endswith("Config") or not owner[:1].isupper():
        return NO_IDEA
    if owner.endswith("Trainer"):
        return Value(TRAINER)
    if owner.endswith("TrainingArguments"):
        return Value(ARGUMENTS)
    if owner.startswith(("AutoModel", "TFAutoModel")) or "Model" in owner or "For" in owner:
        return _TF_MODEL if owner.startswith("TF") else _TORCH_MODEL
    return NO_IDEA


# -- tensors: methods and attributes -----------------------------------------------------------------------------------

TENSOR_NUMBERS = frozenset(
    [
        "size",
        "dim",
        "numel",
        "ndimension",
        "nelement",
        "stride",
        "element_size",
        "is_contiguous",
        "data_ptr",
        "get_device",
        "is_floating_point",
        "is_complex",
        "storage_offset",
        "has_names",
        "is_shared",
        "is_pinned",
        "is_set_to",
        "sym_size",
        "untyped_storage",
        "storage",
        "get_shape",
        "is_inference",
        "is_signed",
        "dense_dim",
        "sparse_dim",
    ]
)
TENSOR_READS = frozenset(("item", "equal", "allclose", "is_nonzero", "__bool__", "__int__", "__float__", "__index__"))
TENSOR_BOOLS = frozenset(_BOOLS.split()) | {"bool"}
TENSOR_INTS = frozenset(("argmax", "argmin", "argsort", "long", "int", "short", "char", "byte", "bincount"))
TENSOR_FLOATS = frozenset(("float", "double", "half", "bfloat16", "softmax", "log_softmax", "sigmoid", "exp", "mean"))
TENSOR_MANY = frozenset(_MANY.split()) | {"nonzero_tuple"}
NUMBER_ATTRIBUTES = frozenset(
    [
        "shape",
        "ndim",
        "dtype",
        "device",
        "requires_grad",
        "is_cuda",
        "is_leaf",
        "layout",
        "is_sparse",
        "grad_fn",
        "is_xla",
        "is_cpu",
        "is_quantized",
        "is_meta",
        "names",
        "itemsize",
        "nbytes",
        "name",
        "op",
        "graph",
        "trainable",
        "is_nested",
        "_version",
    ]
)

# The evidence that a parameter without a name or annotation of its own is a tensor.
TENSOR_ONLY_METHODS = frozenset(
    [
        "unsqueeze",
        "permute",
        "masked_fill",
        "masked_fill_",
        "detach",
        "backward",
        "numel",
        "log_softmax",
        "softmax",
        "contiguous",
        "scatter_",
        "index_select",
        "masked_select",
        "requires_grad_",
        "repeat_interleave",
        "masked_scatter",
        "bmm",
        "matmul",
        "narrow",
        "expand",
        "expand_as",
        "view",
        "view_as",
        "type_as",
        "cuda",
        "unbind",
        "chunk",
        "topk",
        "nonzero",
        "index_fill_",
        "zero_",
        "fill_",
        "add_",
        "mul_",
        "sub_",
        "div_",
        "clamp",
        "clamp_",
        "addmm",
        "sigmoid",
        "logsumexp",
        "retain_grad",
        "bfloat16",
        "logical_not",
        "logical_and",
        "is_contiguous",
        "pow_",
        "index_add_",
        "scatter",
        "gather",
        "clamp_min",
        "clamp_max",
        "amax",
        "amin",
        "aminmax",
        "nan_to_num",
        "isnan",
        "isfinite",
        "isinf",
        "index_add",
        "scatter_add",
        "scatter_add_",
        "relu",
        "log1p",
    ]
)
ARRAY_METHODS = frozenset([
    "sum", "mean", "max", "min", "any", "all", "abs", "argmax", "argmin", "size", "item", "tolist", "float", "long",
    "bool", "int", "half", "dim", "to", "cpu", "numpy", "reshape", "flatten", "squeeze", "transpose", "clone", "eq",
    "ne", "gt", "lt", "ge", "le", "unique", "norm", "std", "var", "exp", "log", "sqrt"
])  # fmt: skip
