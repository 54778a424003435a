"""Infers the values of parameters from annotation, default, name and use, for functions whose calls are not seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from tpu_magics.check.inference.library_results import ARRAY_METHODS, TENSOR_ONLY_METHODS, TORCH_LOSSES
from tpu_magics.check.inference.values import (
    A_NUMBER,
    ACCELERATOR,
    ARGUMENTS,
    ARRAY,
    BATCH,
    CONVENTIONS,
    DATASET,
    DEVICE,
    DICT,
    LIST,
    LOADER,
    MODEL,
    NUMBER,
    OPTIMIZER,
    OUTPUT,
    SCHEDULER,
    STRATEGY,
    TENSOR,
    TOKENIZER,
    UNKNOWN,
    UNKNOWN_VALUE,
    AbstractValue,
)
from tpu_magics.check.program import Function
from tpu_magics.check.syntax import nodes_of

_ANNOTATED = (
    (re.compile(r"^(torch\.)?((Float|Long|Bool|Int|Half)?Tensor|nn\.Parameter)$"), AbstractValue(TENSOR, lib="torch")),
    (re.compile(r"^tf\.(Tensor|Variable)$"), AbstractValue(TENSOR, lib="tf")),
    (re.compile(r"^(int|float|bool|str|bytes|Path|complex)$"), A_NUMBER),
    (re.compile(r"^(np\.|numpy\.)?(ndarray|NDArray)"), AbstractValue(ARRAY)),
    (re.compile(r"^(pd\.)?(DataFrame|Series)$"), AbstractValue(ARRAY)),
    (re.compile(r"^(torch\.)?(nn\.Module|Module)$|PreTrainedModel$|^AutoModel"), AbstractValue(MODEL, lib="torch")),
    (re.compile(r"^((tf\.)?keras\.)?(Model|layers\.Layer|Sequential)$"), AbstractValue(MODEL, lib="tf")),
    (re.compile(r"DataLoader$"), AbstractValue(LOADER, lib="torch")),
    (re.compile(r"Optimizer$|^(torch\.)?optim\."), AbstractValue(OPTIMIZER, lib="torch")),
    (re.compile(r"Tokenizer(Base|Fast)?$"), AbstractValue(TOKENIZER)),
    (re.compile(r"^(accelerate\.)?Accelerator$"), AbstractValue(ACCELERATOR)),
    (re.compile(r"TrainingArguments$"), AbstractValue(ARGUMENTS)),
    (re.compile(r"^torch\.device$"), AbstractValue(DEVICE)),
    (re.compile(r"ModelOutput\w*$|Output$"), AbstractValue(OUTPUT)),
    (re.compile(r"BatchEncoding$"), AbstractValue(BATCH)),
    (re.compile(r"Dataset$"), AbstractValue(DATASET)),
)
_BOOL_TENSOR = re.compile(r"BoolTensor$")
_ANYTHING = re.compile(r"^(typing\.)?(Any|object|Iterable|Iterator|Callable.*)$|^[A-Z]$")
_OPTIONAL = re.compile(r"^(?:typing\.)?Optional\[(.*)\]$|^(.*?)\s*\|\s*None$|^None\s*\|\s*(.*)$", re.S)
_MANY = re.compile(r"^(?:typing\.)?(?:list|List|tuple|Tuple|Sequence|Iterable|Set|set)\[(.*)\]$", re.S)
_MAPPING = re.compile(r"^(?:typing\.)?(?:dict|Dict|Mapping)\[[^,]*,(.*)\]$", re.S)

# Names that always mean the same kind of thing.
_NAMED = (
    (
        re.compile(
            r"^(\w*_)?(model|net|network|encoder|decoder|backbone|generator|discriminator|policy|actor|critic|student|teacher)$"
        ),
        AbstractValue(MODEL),
    ),
    (re.compile(r"^(criterion|crit|loss_fn|loss_func|loss_function|\w+_loss_fn)$"), AbstractValue(MODEL)),
    (re.compile(r"^(optimizer|optim|optimiser|opt)(_\w+)?$"), AbstractValue(OPTIMIZER)),
    (re.compile(r"^(lr_)?scheduler$"), AbstractValue(SCHEDULER)),
    (
        re.compile(r"^((\w*_)?(data_?loader|loader|dl)|(train|val|valid|validation|test|eval|dev)(data)?loader)$"),
        AbstractValue(LOADER),
    ),
    (re.compile(r"^tokenizer$"), AbstractValue(TOKENIZER)),
    (re.compile(r"^accelerator$"), AbstractValue(ACCELERATOR)),
    (re.compile(r"^(xla_|tpu_)?dev(ice)?$"), AbstractValue(DEVICE)),
    (re.compile(r"^strategy$"), AbstractValue(STRATEGY)),
    (re.compile(r"^batch$"), AbstractValue(BATCH)),
)
_FLAGS = re.compile(
    r"^(return|output|use|is|do|has|num|n|max|min|with|should|apply|update|inplace)_|^legacy_|^training$|^mode$|"
    r"_(dimensions|resolution|shape|sizes?|len|height|width|only|type|name|key|mode|layer|dims?|length|scale|rate|dtype|"
    r"device|axis|fn|id|idx)$|^(seq_len|height|width|layer_idx|config|args|kwargs|name|path|idx|index|step|epoch|rank|"
    r"layer|dims?|shape|dtype)$"
)
_TENSORS = re.compile(
    r"^(x|y|z|q|k|v|h|inputs?|input_ids|outputs?|labels?|targets?|logits|loss(es)?|preds?|predictions?|tokens?|ids|hidden_states?|"
    r"images?|pixel_values|features?|embeddings?|embeds?|inputs_embeds|scores?|weights?|query|key|value|queries|keys|values|"
    r"probs?|tensors?|\w*mask|lengths?|y_true|y_pred|y_hat|xb|yb|a|b|t|data|hidden|state|states|grads?|gradients?|"
    r"token_type_ids|position_ids|attention_mask|log_probs?|rewards?|noise|out|tensor|per_example_loss|keep|valid)$"
)  # fmt: skip
_MODULE_METHODS = frozenset(("forward", "call", "training_step", "validation_step", "test_step", "train_step"))

_TRAINER_METHODS = frozenset(("compute_loss", "training_step", "prediction_step"))


def value_of_name(name: str) -> AbstractValue:
    """The conventional value of a name that is bound in another file or cell."""
    return next((value for pattern, value in _NAMED if pattern.match(name)), UNKNOWN_VALUE)


SURELY = 3  # a method that only torch tensors have: `loss.backward()`

# Evidence against a tensor: methods that no tensor has, or only mappings have.
MODEL_USE, _NO_TENSOR, _MAPPING_USE = -3, -2, -1
_MODELS_HAVE = frozenset(("parameters", "named_parameters", "named_modules"))
_MAPPINGS_HAVE = frozenset(("keys", "items", "update", "setdefault"))
_TENSORS_HAVE = frozenset(("get_device", "get_shape"))


def _no_tensor_has(method: str) -> bool:
    return method in _MAPPINGS_HAVE or (method.startswith("get_") and method not in _TENSORS_HAVE)


def guess_parameter(
    function: Function, argument: ast.arg, default: ast.expr | None, evidence: dict[str, int]
) -> AbstractValue:
    """Guesses the value of a parameter from its own function."""
    if argument.annotation is not None and (result := value_of_annotation(argument.annotation)) is not None:
        return UNKNOWN_VALUE if _is_foreign(argument.annotation, function) else result
    if isinstance(default, ast.Constant) and default.value is not None:
        return A_NUMBER
    name = argument.arg
    if name in ("batch", "epoch") and _in_callback(function):
        return AbstractValue(NUMBER, varies=True)
    if name == "inputs" and _in_trainer(function):
        return AbstractValue(BATCH, lib="torch", where="device")
    if evidence.get(name, 0) == MODEL_USE:
        return AbstractValue(MODEL)
    if evidence.get(name, 0) < 0:
        return AbstractValue(BATCH) if evidence[name] == _MAPPING_USE and _in_module(function) else UNKNOWN_VALUE
    for pattern, value in _NAMED:
        if pattern.match(name):
            return value
    if _FLAGS.search(name) and evidence.get(name, 0) < 2:
        return UNKNOWN_VALUE
    if _in_module(function):
        lib = function.cls.lib if function.cls is not None else ""
        return (
            AbstractValue(BATCH if name in ("batch", "data") else TENSOR, lib=lib)
            if _plainly(name, default, evidence)
            else UNKNOWN_VALUE
        )
    if function.compiled and default is None and _TENSORS.match(name):
        return AbstractValue(TENSOR, lib="tf")  # tf.function converts its arguments to tensors
    if evidence.get(name, 0) >= (1 if _TENSORS.match(name) else 2):
        return AbstractValue(TENSOR)
    return UNKNOWN_VALUE


_TENSOR_LIBRARIES = ("torch", "tensorflow", "keras", "jaxtyping")


def _is_foreign(annotation: ast.expr, function: Function) -> bool:
    """Whether a `Tensor` in an annotation is a class of another library."""
    for node in nodes_of(annotation):
        if isinstance(node, ast.Name) and "Tensor" in node.id:
            value = function.ctx.program.globals.get(node.id)
            if value is not None and not value.name.startswith(_TENSOR_LIBRARIES):
                return True
    return False


def _in_module(function: Function) -> bool:
    return function.cls is not None and function.cls.is_module and function.name in _MODULE_METHODS


def _in_trainer(function: Function) -> bool:
    bases = function.cls.all_bases() if function.cls is not None else ()
    return function.name in _TRAINER_METHODS and any(base.endswith("Trainer") for base in bases)


def _in_callback(function: Function) -> bool:
    """Whether this is a method of a Keras callback: `on_batch_end(self, batch, logs)` is given the batch's number."""
    bases = function.cls.all_bases() if function.cls is not None else ()
    return any("keras" in base and base.endswith("Callback") for base in bases)


def _plainly(name: str, default: ast.expr | None, evidence: dict[str, int]) -> bool:
    """In `forward(self, x)` a parameter without a default is a tensor; with `=None` if its name or use shows it."""
    return default is None or bool(_TENSORS.match(name)) or evidence.get(name, 0) >= 1


def value_of_annotation(node: ast.expr) -> AbstractValue | None:
    """The value of an annotation: UNKNOWN_VALUE for an unknown class, None if it says nothing."""
    text = str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)
    return _read_annotation(text.strip(), 0)


def _read_annotation(text: str, depth: int) -> AbstractValue | None:
    if depth > 4:
        return None
    optional = _OPTIONAL.match(text)
    if optional:
        return _read_annotation(next(one for one in optional.groups() if one is not None).strip(), depth + 1)
    parts = _parts(text)
    if len(parts) > 1:
        return _union([_read_annotation(part, depth + 1) for part in parts])
    for pattern in (_MANY, _MAPPING):
        if many := pattern.match(text):
            item = _read_annotation(many[1].split(",")[0].strip(), depth + 1)
            return AbstractValue(LIST, item=item, name=DICT if pattern is _MAPPING else "")
    for pattern, value in _ANNOTATED:
        if pattern.search(text):
            return value.with_(dtype="bool") if _BOOL_TENSOR.search(text) else value
    if _ANYTHING.match(text):
        return None
    return AbstractValue(TENSOR, lib="torch") if _SOME_TENSOR.search(text) and "[" not in text else UNKNOWN_VALUE


_SOME_TENSOR = re.compile(r"(?<!\w)\w*Tensor(?!\w)")
_UNION = re.compile(r"^(?:typing\.)?Union\[(.*)\]$", re.S)


def _parts(text: str) -> list[str]:
    """The parts of `A | B` or `Union[A, B]`."""
    union = _UNION.match(text)
    inner, separator = (union[1], ",") if union else (text, "|")
    parts, depth, start = [], 0, 0
    for number, letter in enumerate(inner):
        depth += (letter == "[") - (letter == "]")
        if letter == separator and depth == 0:
            parts.append(inner[start:number].strip())
            start = number + 1
    return [part for part in (*parts, inner[start:].strip()) if part and part != "None"]


def _union(values: list[AbstractValue | None]) -> AbstractValue | None:
    """A tensor or an unknown class: a tensor. A tensor or a number: neither."""
    known = [one for one in values if one is not None and one.kind != UNKNOWN]
    kinds = {one.kind for one in known}
    return known[0] if len(kinds) == 1 else UNKNOWN_VALUE


def usage_evidence(body: ast.AST | list[ast.stmt], numeric: bool, libraries: Mapping[str, str]) -> dict[str, int]:
    """How surely each name is used as a tensor: 2 by methods of tensors only, 1 by methods that arrays also have.

    `numeric`: the program uses NumPy or pandas, so methods that arrays also have are no evidence. `libraries`: imported
    names and their canonical names.
    """
    result: dict[str, int] = {}
    assigned: list[tuple[str, ast.expr]] = []
    nodes = body if isinstance(body, list) else [body]
    for statement in nodes:
        for node in nodes_of(statement):
            if isinstance(node, ast.Call):
                _look_at_call(node, numeric, result, libraries)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned.append((node.targets[0].id, node.value))
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                    result[node.value.id] = _MAPPING_USE
                elif not numeric and isinstance(node.slice, ast.Tuple) and any(map(_only_arrays, node.slice.elts)):
                    _add_evidence(node.value, 2, result)  # `x[:, 0]`, `x[..., None]`
            elif isinstance(node, ast.Compare):
                _look_at_comparison(node, result)
    for name, source in reversed(assigned):  # the source of a slice that is a tensor is a tensor
        if result.get(name, 0) > 0 and isinstance(source, (ast.Name, ast.Subscript, ast.Call)):
            _add_evidence(source, result[name], result)
    return result


def _only_arrays(index: ast.expr) -> bool:
    """An index that no list and no dict takes."""
    return isinstance(index, ast.Slice) or (isinstance(index, ast.Constant) and index.value in (None, ...))


# Functions of torch and tf that take sizes, seeds or anything: no evidence for their first argument.
_TAKE_ANYTHING = frozenset(
    ("tensor", "as_tensor", "device", "from_numpy", "save", "load", "is_tensor", "convert_to_tensor", "constant",
     "manual_seed", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm", "arange", "eye",
     "linspace", "logspace", "Size", "set_num_threads", "dtype", "finfo", "iinfo", "compile", "fill", "range",
     "xla_device", "function", "Variable", "TensorSpec", "print", "rendezvous", "master_print", "optimizer_step",
     "save", "get_ordinal", "hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window",
     "tril_indices", "triu_indices")
)  # fmt: skip
_LIBRARIES = frozenset(
    ("torch", "torch.nn.functional", "torch.linalg", "tensorflow", "tensorflow.math", "tensorflow.nn",
     "torch_xla.core.xla_model")
)  # fmt: skip
_PAIRS = frozenset(("max", "min", "maximum", "minimum", "matmul", "mm", "bmm", "dot", "cdist", "cosine_similarity"))
_TORCH_ONLY = frozenset(
    ("float", "long", "half", "dim", "cpu", "to", "clone", "bool", "eq", "ne", "gt", "lt", "ge", "le")
)


def _look_at_comparison(node: ast.Compare, result: dict[str, int]) -> None:
    """`"labels" in batch`: a mapping."""
    key, other = node.left, node.comparators[0]
    text = isinstance(key, ast.Constant) and isinstance(key.value, str)
    if text and isinstance(other, ast.Name) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        result[other.id] = _MAPPING_USE


def _look_at_call(node: ast.Call, numeric: bool, result: dict[str, int], libraries: Mapping[str, str]) -> None:
    func = node.func
    for keyword in node.keywords:
        if keyword.arg is None and isinstance(keyword.value, ast.Name):
            result[keyword.value.id] = _MAPPING_USE
    if isinstance(func, ast.Name):
        _look_at_library_call(node, libraries.get(func.id, ""), result)
        return
    if not isinstance(func, ast.Attribute):
        return
    if isinstance(func.value, ast.Name) and func.attr in _MODELS_HAVE:
        result[func.value.id] = MODEL_USE
        return
    if isinstance(func.value, ast.Name) and _no_tensor_has(func.attr):
        result[func.value.id] = _MAPPING_USE if func.attr in _MAPPINGS_HAVE else _NO_TENSOR
        return
    if func.attr in TENSOR_ONLY_METHODS:
        _add_evidence(func.value, SURELY if func.attr in ("backward", "detach") else 2, result)
    elif func.attr in _TORCH_ONLY or (func.attr in ARRAY_METHODS and not numeric):
        _add_evidence(func.value, 1, result)
    if isinstance(func.value, ast.Name):
        owner = libraries.get(func.value.id) or CONVENTIONS.get(func.value.id, "")
        _look_at_library_call(node, f"{owner}.{func.attr}", result)


def _look_at_library_call(node: ast.Call, name: str, result: dict[str, int]) -> None:
    """`torch.sum(x)`, `F.cross_entropy(out, labels)`: the first argument is a tensor, for a loss also the second."""
    owner, _, last = name.rpartition(".")
    if last in TORCH_LOSSES:
        for argument in [*node.args[:2], *(one.value for one in node.keywords if one.arg in ("input", "target"))]:
            _add_evidence(argument, 2, result)
    elif owner in _LIBRARIES and last[:1].islower() and last not in _TAKE_ANYTHING:
        for argument in node.args[: 2 if last in _PAIRS else 1]:
            _add_evidence(argument, 2, result)


def _add_evidence(node: ast.expr, surely: int, result: dict[str, int]) -> None:
    """Adds evidence for the names in an expression: `x`, `x[keep]`, `x.view(-1)`, `a[m] == b[m]`."""
    while True:
        if isinstance(node, ast.Name):
            if result.get(node.id, 0) >= 0:
                result[node.id] = max(result.get(node.id, 0), surely)
            return
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHAINED:
            node = node.func.value
        elif isinstance(node, ast.Compare) and len(node.comparators) == 1:
            for one in (node.left, node.comparators[0]):
                if isinstance(one, ast.Subscript):
                    _add_evidence(one, min(surely, 1), result)
            return
        else:
            return


_CHAINED = TENSOR_ONLY_METHODS | _TORCH_ONLY
