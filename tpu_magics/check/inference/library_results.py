"""What functions, methods and attributes of libraries return: tables, and a few rules for what they leave out.

Read in torch 2.9, torch_xla 2.9, transformers 5.23, accelerate 1.15 and TensorFlow 2.21. What is not listed is unknown,
and no rule reports it.
"""

from __future__ import annotations

from functools import lru_cache

from tpu_magics.check.inference.values import (
    ACCELERATOR,
    ARGUMENTS,
    ARRAY,
    COLLATOR,
    DATASET,
    DEVICE,
    LIST,
    LOADER,
    MODEL,
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
    UNKNOWN_VALUE,
    AbstractValue,
)

XM = "torch_xla.core.xla_model."

# What torch_xla and transformers have removed: the first version without it, and the same thing today.
REMOVED = {
    XM + "xrt_world_size": ("2.7", "torch_xla.runtime.world_size"),
    XM + "get_ordinal": ("2.7", "torch_xla.runtime.global_ordinal"),
    "torch_xla.runtime.xla_device": ("2.8", "torch_xla.device"),
    "torch_xla.experimental.pjrt": ("2.5", "torch_xla.runtime"),
    "torch_xla.experimental.xla_sharding": ("2.5", "torch_xla.distributed.spmd"),
    "transformers.AdamW": ("4.50", "torch.optim.AdamW"),
    "transformers.is_torch_tpu_available": ("4.51", "transformers.utils.is_torch_xla_available"),
    "transformers.file_utils.is_torch_tpu_available": ("4.51", "transformers.utils.is_torch_xla_available"),
}
XR = "torch_xla.runtime."

# -- what calls of a name give: exact names first, then the longest prefix ---------------------------------------------

_NUMBER = AbstractValue(NUMBER)
_TORCH = AbstractValue(TENSOR, lib="torch")
_TORCH_BOOL = AbstractValue(TENSOR, lib="torch", dtype="bool")
_TORCH_INT = AbstractValue(TENSOR, lib="torch", dtype="int")
_TORCH_FLOAT = AbstractValue(TENSOR, lib="torch", dtype="float")
_TORCH_OUTPUT = AbstractValue(OUTPUT, lib="torch")
_TF = AbstractValue(TENSOR, lib="tf")
_TF_BOOL = AbstractValue(TENSOR, lib="tf", dtype="bool")
_TF_INT = AbstractValue(TENSOR, lib="tf", dtype="int")
_TF_OUTPUT = AbstractValue(OUTPUT, lib="tf")
_TORCH_MODEL = AbstractValue(MODEL, lib="torch")
_TF_MODEL = AbstractValue(MODEL, lib="tf")
_XLA = AbstractValue(DEVICE, where="device")
_RANK = AbstractValue(NUMBER, name="%rank")
_VARIES = AbstractValue(NUMBER, varies=True)

_BOOLS = "eq ne lt le gt ge isnan isinf isfinite isclose logical_and logical_or logical_not logical_xor isin greater " \
    "less greater_equal less_equal not_equal is_nan is_inf is_finite isneginf isposinf " \
    "signbit equal_ any all"  # fmt: skip
_INTS = "argmax argmin argsort searchsorted bucketize bincount randint randint_like arange randperm one_hot " \
    "multinomial range shape rank size"  # fmt: skip
_MANY = "topk sort split chunk unbind tensor_split max_pool2d_with_indices kthvalue mode median svd qr eigh meshgrid " \
    "broadcast_tensors frexp std_mean var_mean lstm gru unstack top_k moments unique unique_with_counts " \
    "nonzero_tuple hsplit vsplit dsplit split_with_sizes aminmax cummax cummin linalg_svd"  # fmt: skip

# Functions of torch.nn.functional; the result is one number unless `reduction` says otherwise.
TORCH_LOSSES = frozenset(
    ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss",
     "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss", "hinge_embedding_loss",
     "cosine_embedding_loss")
)  # fmt: skip
_FUNCTIONAL = "torch.nn.functional."


def is_torch_loss(name: str) -> bool:
    """Whether a canonical name is that of a loss of torch.nn.functional."""
    return name.startswith(_FUNCTIONAL) and name.removeprefix(_FUNCTIONAL) in TORCH_LOSSES


_EXACT: dict[str, AbstractValue] = {
    **dict.fromkeys(("torch." + one for one in _BOOLS.split()), _TORCH_BOOL),
    **dict.fromkeys(("torch." + one for one in _INTS.split()), _TORCH_INT),
    **dict.fromkeys(("torch." + one for one in _MANY.split()), _TORCH_OUTPUT),
    **dict.fromkeys(
        ("torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.IntTensor"),
        AbstractValue(TENSOR, lib="torch", where="host"),
    ),
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
    "torch.finfo": AbstractValue(NUMBER),
    "torch.from_numpy": _TORCH,
    "torch.load": UNKNOWN_VALUE,
    "torch.equal": AbstractValue(NUMBER, read=True, name="torch.equal"),
    "torch.allclose": AbstractValue(NUMBER, read=True, name="torch.allclose"),
    "torch.is_nonzero": AbstractValue(NUMBER, read=True, name="torch.is_nonzero"),
    "torch.nn.functional.one_hot": _TORCH_INT,
    "torch.nn.functional.max_pool2d_with_indices": _TORCH_OUTPUT,
    "torch.nn.Parameter": _TORCH,
    "torch.nn.parameter.Parameter": _TORCH,
    "torch.nn.ParameterList": AbstractValue(LIST, item=_TORCH),
    "torch.nn.ModuleList": AbstractValue(LIST, item=_TORCH_MODEL),
    "torch.nn.ModuleDict": AbstractValue(LIST, item=_TORCH_MODEL),
    "torch.utils.data.DataLoader": AbstractValue(LOADER, lib="torch"),
    "torch.utils.data.random_split": AbstractValue(LIST, item=AbstractValue(DATASET, lib="torch")),
    "torch.utils.data.default_collate": AbstractValue(OUTPUT, lib="torch", where="host"),
    "torch.nn.utils.rnn.pad_sequence": _TORCH,
    "torch.nn.utils.rnn.pack_padded_sequence": _TORCH_OUTPUT,
    "torch.nn.utils.rnn.pad_packed_sequence": _TORCH_OUTPUT,
    "torch.nn.utils.clip_grad_norm_": _TORCH,
    "torch.nn.utils.parameters_to_vector": _TORCH,
    "torch.autograd.grad": AbstractValue(LIST, item=_TORCH),
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
    XM + "mesh_reduce": AbstractValue(NUMBER, read=True),
    XM + "get_memory_info": _NUMBER,
    XR + "global_ordinal": _RANK,
    XR + "local_ordinal": _RANK,
    XR + "process_index": _RANK,
    "torch.distributed.get_rank": _RANK,
    "torch_xla.distributed.parallel_loader.MpDeviceLoader": AbstractValue(LOADER, lib="torch", prepared=True),
    "torch_xla.distributed.parallel_loader.ParallelLoader": AbstractValue(LOADER, lib="torch", prepared=True),
    "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel": _TORCH_MODEL,
    "accelerate.Accelerator": AbstractValue(ACCELERATOR),
    "accelerate.PartialState": AbstractValue(ACCELERATOR),
    "accelerate.AcceleratorState": AbstractValue(ACCELERATOR),
    "accelerate.utils.send_to_device": AbstractValue(OUTPUT, lib="torch", where="device"),
    "transformers.Trainer": AbstractValue(TRAINER),
    "transformers.Seq2SeqTrainer": AbstractValue(TRAINER),
    "transformers.TrainingArguments": AbstractValue(ARGUMENTS),
    "transformers.Seq2SeqTrainingArguments": AbstractValue(ARGUMENTS),
    "transformers.default_data_collator": AbstractValue(OUTPUT, lib="torch", where="host"),
    **dict.fromkeys(
        ("tensorflow.shape", "tensorflow.size", "tensorflow.rank", "keras.ops.shape"),
        AbstractValue(TENSOR, lib="tf", dtype="int", shape=True),
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
        (_FUNCTIONAL + one for one in [
            *TORCH_LOSSES, "relu", "gelu", "silu", "sigmoid", "tanh", "softmax", "log_softmax", "dropout",
            "layer_norm", "batch_norm", "normalize", "softplus", "leaky_relu", "elu", "linear"
        ]),
        _TORCH_FLOAT,
    ),
    **dict.fromkeys(
        ("tensorflow." + one for one in [
            "reduce_mean", "exp", "sqrt", "sigmoid", "tanh", "random.normal", "random.uniform", "math.log",
            "nn.softmax", "nn.relu", "nn.sigmoid", "nn.log_softmax"
        ]),
        AbstractValue(TENSOR, lib="tf", dtype="float"),
    ),
    "tensorflow.data.Dataset": AbstractValue(TFDATA),
    "tensorflow.data.TFRecordDataset": AbstractValue(TFDATA),
    "tensorflow.data.TextLineDataset": AbstractValue(TFDATA),
    "tensorflow.Variable": _TF,
    "tensorflow.is_tensor": _NUMBER,
    "tensorflow.executing_eagerly": _NUMBER,
    "tensorflow.print": _NUMBER,
    "tensorflow.get_static_value": _NUMBER,
    "tensorflow.GradientTape": UNKNOWN_VALUE,
    "tensorflow.clip_by_global_norm": _TF_OUTPUT,
    "tensorflow.function": UNKNOWN_VALUE,
    "tensorflow.py_function": _TF,
    "tensorflow.group": UNKNOWN_VALUE,
    "tensorflow.no_op": UNKNOWN_VALUE,
    "tensorflow.distribute.get_strategy": AbstractValue(STRATEGY, name="tensorflow.distribute.get_strategy"),
    "keras.utils.image_dataset_from_directory": AbstractValue(TFDATA),
    "keras.preprocessing.image_dataset_from_directory": AbstractValue(TFDATA),
    "keras.utils.text_dataset_from_directory": AbstractValue(TFDATA),
    "keras.utils.timeseries_dataset_from_array": AbstractValue(TFDATA),
    "keras.Input": AbstractValue(TENSOR, lib="tf", name="keras.Input"),
    "keras.layers.Input": AbstractValue(TENSOR, lib="tf", name="keras.Input"),
    "keras.models.load_model": _TF_MODEL,
    "keras.models.clone_model": _TF_MODEL,
    "datasets.load_dataset": AbstractValue(DATASET),
    "datasets.load_from_disk": AbstractValue(DATASET),
    "datasets.Dataset.from_dict": AbstractValue(DATASET),
    "datasets.Dataset.from_pandas": AbstractValue(DATASET),
    "datasets.Dataset.from_list": AbstractValue(DATASET),
    "datasets.concatenate_datasets": AbstractValue(DATASET),
    "tensorflow_datasets.load": AbstractValue(TFDATA),
    **dict.fromkeys(
        ("time.time", "time.perf_counter", "time.monotonic", "random.random", "random.randint", "random.uniform",
         "random.choice", "random.randrange", "random.gauss", "datetime.datetime.now"),
        _VARIES,
    ),
}  # fmt: skip

# A prefix that ends in "." covers the names below it; a capital letter means a class.
_Results = tuple[AbstractValue, AbstractValue]  # of a function, of a class


def _below(package: str, names: str, results: _Results) -> dict[str, _Results]:
    return dict.fromkeys((f"{package}.{one}." for one in names.split()), results)


_TORCH_BELOW = "nn.functional nn.init linalg special fft sparse"
_TORCH_UNKNOWN = "utils ops jit onnx fx autograd amp random serialization library export func distributions profiler " \
    "testing multiprocessing _dynamo _C _utils _inductor"  # fmt: skip
_TF_BELOW = "math nn io linalg signal image random strings sparse sets experimental.numpy"
_TF_UNKNOWN = "data tpu train saved_model summary debugging dtypes compat experimental autograph estimator lite test " \
    "errors profiler keras"  # fmt: skip
_NOTHING = (UNKNOWN_VALUE, UNKNOWN_VALUE)
_MODELS = (UNKNOWN_VALUE, _TF_MODEL)

_BELOW: dict[str, _Results] = {
    "torch.": (_TORCH, UNKNOWN_VALUE),
    **_below("torch", _TORCH_BELOW, (_TORCH, UNKNOWN_VALUE)),
    **_below("torch", _TORCH_UNKNOWN, _NOTHING),
    **_below("torch", "cuda backends distributed compiler mps xpu", (_NUMBER, UNKNOWN_VALUE)),
    **_below("torch", "nn nn.parallel", (UNKNOWN_VALUE, _TORCH_MODEL)),
    "torch.hub.": (_TORCH_MODEL, UNKNOWN_VALUE),
    "torch.optim.": (UNKNOWN_VALUE, AbstractValue(OPTIMIZER, lib="torch")),
    "torch.optim.lr_scheduler.": (UNKNOWN_VALUE, AbstractValue(SCHEDULER, lib="torch")),
    "torch.utils.data.": (UNKNOWN_VALUE, AbstractValue(DATASET, lib="torch")),
    "torchvision.models.": (_TORCH_MODEL, UNKNOWN_VALUE),
    "torchvision.datasets.": (UNKNOWN_VALUE, AbstractValue(DATASET, lib="torch")),
    "timm.": (_TORCH_MODEL, UNKNOWN_VALUE),
    "torch_xla.amp.syncfree.": (UNKNOWN_VALUE, AbstractValue(OPTIMIZER, lib="torch")),
    XR: (_NUMBER, UNKNOWN_VALUE),
    "numpy.": (AbstractValue(ARRAY), AbstractValue(ARRAY)),
    "pandas.": (AbstractValue(ARRAY), AbstractValue(ARRAY)),
    "tensorflow.": (_TF, UNKNOWN_VALUE),
    **_below("tensorflow", _TF_BELOW, (_TF, UNKNOWN_VALUE)),
    **_below("tensorflow", _TF_UNKNOWN, _NOTHING),
    "tensorflow.config.": (_NUMBER, UNKNOWN_VALUE),
    "tensorflow.data.Dataset.": (AbstractValue(TFDATA), UNKNOWN_VALUE),
    **_below("tensorflow", "distribute distribute.experimental", (UNKNOWN_VALUE, AbstractValue(STRATEGY))),
    "tensorflow.distribute.cluster_resolver.": (UNKNOWN_VALUE, AbstractValue(RESOLVER)),
    "tensorflow.distribute.cluster_resolver.TPUClusterResolver.": (AbstractValue(RESOLVER), UNKNOWN_VALUE),
    "keras.": _NOTHING,
    **_below("keras", "layers models applications", _MODELS),
    **_below("keras", "losses metrics", (_TF, _TF_MODEL)),
    **_below("keras", "activations ops", (_TF, UNKNOWN_VALUE)),
    **_below("keras", "optimizers optimizers.legacy", (UNKNOWN_VALUE, AbstractValue(OPTIMIZER, lib="tf"))),
    "keras.optimizers.schedules.": (UNKNOWN_VALUE, AbstractValue(SCHEDULER, lib="tf")),
    "keras.Model": (_TF_MODEL, _TF_MODEL),
    "keras.Sequential": (_TF_MODEL, _TF_MODEL),
    "keras_nlp.models.": _MODELS,
    "keras_hub.models.": _MODELS,
}
_KERAS_ITSELF = {"keras.Model": _TF_MODEL, "keras.Sequential": _TF_MODEL}


@lru_cache(maxsize=50_000)
def call(name: str) -> AbstractValue:
    """The result of a call of this canonical name; UNKNOWN_VALUE if it is unknown."""
    result = _EXACT.get(name) or _KERAS_ITSELF.get(name)
    if result is not None:
        return result
    root = name.partition(".")[0]
    if root == "transformers":
        return _transformers(name)
    if name.startswith(("torch.get_", "torch.is_", "torch.set_")):
        return _NUMBER
    if name.startswith(("torch._", "torch.autocast_")):
        return UNKNOWN_VALUE
    if root == "tensorflow" or root == "tf":
        special = _tensorflow(name)
        if special is not None:
            return special
    return _by_prefix(name)


def _by_prefix(name: str) -> AbstractValue:
    prefix = name
    while "." in prefix:
        prefix = prefix.rpartition(".")[0]
        pair = _BELOW.get(prefix + ".")
        if pair is not None:
            last = name.rpartition(".")[2]
            # Deeper names are methods of a class, which the table does not cover.
            direct = name == f"{prefix}.{last}"
            return pair[1 if last[:1].isupper() else 0] if direct else UNKNOWN_VALUE
    return UNKNOWN_VALUE


_TF_BOOLS = frozenset(_BOOLS.split()) | {"reduce_any", "reduce_all", "is_nan"}
_TF_INTS = frozenset(_INTS.split()) | {"argmax", "argmin"}
_TF_MANY = frozenset(_MANY.split()) | {"unique", "unstack", "split"}


def _tensorflow(name: str) -> AbstractValue | None:
    last = name.rpartition(".")[2]
    if name.startswith("tensorflow.data.Dataset."):
        return AbstractValue(TFDATA)
    if name.count(".") > 2 or (name.count(".") == 2 and not name.startswith(("tensorflow.math.", "tensorflow.nn."))):
        return None
    return _TF_BOOL if last in _TF_BOOLS else _TF_INT if last in _TF_INTS else _TF_OUTPUT if last in _TF_MANY else None


_MAKERS = ("from_pretrained", "from_config")


def _transformers(name: str) -> AbstractValue:
    parts = name.split(".")
    owner = parts[1] if len(parts) > 1 else ""
    if len(parts) == 3 and parts[2] not in _MAKERS:
        return UNKNOWN_VALUE
    if len(parts) > 3:
        return UNKNOWN_VALUE
    if owner.startswith("DataCollator"):
        return AbstractValue(COLLATOR)
    if owner.endswith(("Tokenizer", "TokenizerFast", "Processor", "FeatureExtractor")):
        return AbstractValue(TOKENIZER)
    if owner.startswith("get_") and owner.endswith("schedule"):
        return AbstractValue(SCHEDULER, lib="torch")
    if owner.startswith("get_") and "schedule" in owner:
        return AbstractValue(SCHEDULER, lib="torch")
    if owner in ("AdamW", "Adafactor"):
        return AbstractValue(OPTIMIZER, lib="torch")
    if owner.endswith("Config") or not owner[:1].isupper():
        return UNKNOWN_VALUE
    if owner.endswith("Trainer"):
        return AbstractValue(TRAINER)
    if owner.endswith("TrainingArguments"):
        return AbstractValue(ARGUMENTS)
    if owner.startswith(("AutoModel", "TFAutoModel")) or "Model" in owner or "For" in owner:
        return _TF_MODEL if owner.startswith("TF") else _TORCH_MODEL
    return UNKNOWN_VALUE


# -- tensors: methods and attributes -----------------------------------------------------------------------------------

TENSOR_NUMBERS = frozenset(
    ("size", "dim", "numel", "ndimension", "nelement", "stride", "element_size", "is_contiguous", "data_ptr",
     "get_device", "is_floating_point", "is_complex", "storage_offset", "has_names", "is_shared", "is_pinned",
     "is_set_to", "sym_size", "untyped_storage", "storage", "get_shape", "is_inference", "is_signed", "dense_dim",
     "sparse_dim")
)  # fmt: skip
TENSOR_READS = frozenset(("item", "equal", "allclose", "is_nonzero", "__bool__", "__int__", "__float__", "__index__"))
TENSOR_BOOLS = frozenset(_BOOLS.split()) | {"bool"}
TENSOR_INTS = frozenset(("argmax", "argmin", "argsort", "long", "int", "short", "char", "byte", "bincount"))
TENSOR_FLOATS = frozenset(("float", "double", "half", "bfloat16", "softmax", "log_softmax", "sigmoid", "exp", "mean"))
TENSOR_MANY = frozenset(_MANY.split()) | {"nonzero_tuple"}
NUMBER_ATTRIBUTES = frozenset(
    ("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "is_leaf", "layout", "is_sparse", "grad_fn",
     "is_xla", "is_cpu", "is_quantized", "is_meta", "names", "itemsize", "nbytes", "name", "op", "graph", "trainable",
     "is_nested", "_version")
)  # fmt: skip

# Evidence that a parameter without a telling name or annotation is a tensor.
TENSOR_ONLY_METHODS = frozenset(
    ("unsqueeze", "permute", "masked_fill", "masked_fill_", "detach", "backward", "numel", "log_softmax", "softmax",
     "contiguous", "scatter_", "index_select", "masked_select", "requires_grad_", "repeat_interleave",
     "masked_scatter", "bmm", "matmul", "narrow", "expand", "expand_as", "view", "view_as", "type_as", "cuda",
     "unbind", "chunk", "topk", "nonzero", "index_fill_", "zero_", "fill_", "add_", "mul_", "sub_", "div_", "clamp",
     "clamp_", "addmm", "sigmoid", "logsumexp", "retain_grad", "bfloat16", "logical_not", "logical_and",
     "is_contiguous", "pow_", "index_add_", "scatter", "gather", "clamp_min", "clamp_max", "amax", "amin", "aminmax",
     "nan_to_num", "isnan", "isfinite", "isinf", "index_add", "scatter_add", "scatter_add_", "relu", "log1p")
)  # fmt: skip
ARRAY_METHODS = frozenset([
    "sum", "mean", "max", "min", "any", "all", "abs", "argmax", "argmin", "size", "item", "tolist", "float", "long",
    "bool", "int", "half", "dim", "to", "cpu", "numpy", "reshape", "flatten", "squeeze", "transpose", "clone", "eq",
    "ne", "gt", "lt", "ge", "le", "unique", "norm", "std", "var", "exp", "log", "sqrt"
])  # fmt: skip
