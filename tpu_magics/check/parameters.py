"""What a function's parameter is likely to be, from its annotation, default, name and use.

What lives here: guesses for functions whose calls are not seen. What does not: values that call sites give (flow.py).
"""

from __future__ import annotations

import ast
import re

from tpu_magics.check.known import ARRAY_METHODS, TENSOR_ONLY_METHODS
from tpu_magics.check.program import Function
from tpu_magics.check.values import (
    A_NUMBER,
    ACCELERATOR,
    ARGUMENTS,
    ARRAY,
    BATCH,
    DATASET,
    DEVICE,
    LIST,
    LOADER,
    MODEL,
    NO_IDEA,
    OPTIMIZER,
    OUTPUT,
    SCHEDULER,
    STRATEGY,
    TENSOR,
    TOKENIZER,
    Value,
)

_ANNOTATED = (
    (re.compile(r"^(torch\.)?((Float|Long|Bool|Int|Half)?Tensor|nn\.Parameter)$"), Value(TENSOR, lib="torch")),
    (re.compile(r"^tf\.(Tensor|Variable)$"), Value(TENSOR, lib="tf")),
    (re.compile(r"^(int|float|bool|str|bytes|Path|complex)$"), A_NUMBER),
    (re.compile(r"^(np\.|numpy\.)?(ndarray|NDArray)"), Value(ARRAY)),
    (re.compile(r"^(pd\.)?(DataFrame|Series)$"), Value(ARRAY)),
    (re.compile(r"^(torch\.)?(nn\.Module|Module)$|PreTrainedModel$|^AutoModel"), Value(MODEL, lib="torch")),
    (re.compile(r"^((tf\.)?keras\.)?(Model|layers\.Layer|Sequential)$"), Value(MODEL, lib="tf")),
    (re.compile(r"DataLoader$"), Value(LOADER, lib="torch")),
    (re.compile(r"Optimizer$|^(torch\.)?optim\."), Value(OPTIMIZER, lib="torch")),
    (re.compile(r"Tokenizer(Base|Fast)?$"), Value(TOKENIZER)),
    (re.compile(r"^(accelerate\.)?Accelerator$"), Value(ACCELERATOR)),
    (re.compile(r"TrainingArguments$"), Value(ARGUMENTS)),
    (re.compile(r"^torch\.device$"), Value(DEVICE)),
    (re.compile(r"ModelOutput\w*$|Output$"), Value(OUTPUT)),
    (re.compile(r"BatchEncoding$"), Value(BATCH)),
    (re.compile(r"Dataset$"), Value(DATASET)),
)
_BOOL_TENSOR = re.compile(r"BoolTensor$")
_OPTIONAL = re.compile(r"^(?:typing\.)?Optional\[(.*)\]$|^(.*?)\s*\|\s*None$|^None\s*\|\s*(.*)$", re.S)
_MANY = re.compile(r"^(?:typing\.)?(?:list|List|tuple|Tuple|Sequence|Iterable|Set|set)\[(.*)\]$", re.S)
_MAPPING = re.compile(r"^(?:typing\.)?(?:dict|Dict|Mapping)\[[^,]*,(.*)\]$", re.S)

# Names that people give to one thing only.
_NAMED = (
    (re.compile(r"^(\w*_)?(model|net|network|encoder|decoder|backbone|generator|discriminator)$"), Value(MODEL)),
    (re.compile(r"^(criterion|loss_fn|loss_func|loss_function|\w+_loss_fn)$"), Value(MODEL)),
    (re.compile(r"^(optimizer|optim|optimiser|opt)(_\w+)?$"), Value(OPTIMIZER)),
    (re.compile(r"^(lr_)?scheduler$"), Value(SCHEDULER)),
    (re.compile(r"^(\w*_)?(data_?loader|loader|dl)$"), Value(LOADER)),
    (re.compile(r"^tokenizer$"), Value(TOKENIZER)),
    (re.compile(r"^accelerator$"), Value(ACCELERATOR)),
    (re.compile(r"^device$"), Value(DEVICE)),
    (re.compile(r"^strategy$"), Value(STRATEGY)),
    (re.compile(r"^batch$"), Value(BATCH)),
)
_FLAGS = re.compile(r"^(return|output|use|is|do|has|num|n|max|min|with|should|apply|update|inplace)_|^training$|_size$|_fn$|^mode$|"
    r"^config$|^args$|^kwargs$|^name$|^path$|_id$|_idx$|^idx$|^index$|^step$|^epoch$|^rank$|_type$|_name$|_key$|_mode$|^layer$|_layer$|_dims?$|^dims?$|_shape$|^shape$|_length$|_len$|_scale$|_rate$|_dtype$|^dtype$|_device$|_axis$")  # fmt: skip
_TENSORS = re.compile(
    r"^(x|y|z|q|k|v|h|inputs?|input_ids|outputs?|labels?|targets?|logits|loss(es)?|preds?|predictions?|tokens?|ids|hidden_states?|"
    r"images?|pixel_values|features?|embeddings?|embeds?|inputs_embeds|scores?|weights?|query|key|value|queries|keys|values|"
    r"probs?|tensors?|\w*mask|lengths?|y_true|y_pred|y_hat|xb|yb|a|b|t|data|hidden|state|states|grads?|gradients?|"
    r"token_type_ids|position_ids|attention_mask|log_probs?|rewards?|noise|out|tensor|per_example_loss|keep|valid)$"
)  # fmt: skip
_NOT_LIBRARY_SELF = frozenset(("self", "cls"))
_MODULE_METHODS = frozenset(("forward", "call", "training_step", "validation_step", "test_step", "train_step"))


def guess(function: Function, argument: ast.arg, default: ast.expr | None, evidence: dict[str, int]) -> Value:
    """The value of a parameter as its own function tells it."""
    if argument.annotation is not None and (found := annotated(argument.annotation)) is not None:
        return found
    if isinstance(default, ast.Constant) and default.value is not None:
        return A_NUMBER.with_(varies=False)
    name = argument.arg
    for pattern, value in _NAMED:
        if pattern.match(name):
            return value
    if _FLAGS.search(name):
        return NO_IDEA
    if _in_module(function):
        lib = function.cls.lib if function.cls is not None else ""
        return Value(BATCH if name in ("batch", "data") else TENSOR, lib=lib) if _plainly(name, default, evidence) else NO_IDEA
    if evidence.get(name, 0) >= (1 if _TENSORS.match(name) else 2):
        return Value(TENSOR)
    return NO_IDEA


def _in_module(function: Function) -> bool:
    return function.cls is not None and function.cls.is_module and function.name in _MODULE_METHODS


def _plainly(name: str, default: ast.expr | None, evidence: dict[str, int]) -> bool:
    """In `forward(self, x)` a parameter without a default is a tensor; one with `=None` where its name or use says so."""
    return default is None or bool(_TENSORS.match(name)) or evidence.get(name, 0) >= 2


def annotated(node: ast.expr) -> Value | None:
    """What an annotation says; None where it says nothing that matters here."""
    if isinstance(node, ast.Constant):
        text = str(node.value)
    else:
        text = ast.unparse(node)
    return _read_annotation(text.strip(), 0)


def _read_annotation(text: str, depth: int) -> Value | None:
    if depth > 4:
        return None
    optional = _OPTIONAL.match(text)
    if optional:
        return _read_annotation(next(one for one in optional.groups() if one is not None).strip(), depth + 1)
    for pattern in (_MANY, _MAPPING):
        if many := pattern.match(text):
            item = _read_annotation(many[1].split(",")[0].strip(), depth + 1)
            return Value(LIST, item=item)
    for pattern, value in _ANNOTATED:
        if pattern.search(text):
            return value.with_(dtype="bool") if _BOOL_TENSOR.search(text) else value
    return None


def evidence_of(body: ast.AST | list[ast.stmt], numeric: bool) -> dict[str, int]:
    """How surely each name is used as a tensor: 2 by what only tensors have, 1 by what arrays have as well.

    `numeric`: the program uses NumPy or pandas, so that what arrays have as well says nothing.
    """
    found: dict[str, int] = {}
    nodes = body if isinstance(body, list) else [body]
    for statement in nodes:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                _look_at_call(node, numeric, found)
    return found


def _look_at_call(node: ast.Call, numeric: bool, found: dict[str, int]) -> None:
    func = node.func
    if not isinstance(func, ast.Attribute):
        return
    if isinstance(func.value, ast.Name):
        name = func.value.id
        if func.attr in TENSOR_ONLY_METHODS:
            found[name] = 2
        elif func.attr in ARRAY_METHODS and not numeric:
            found.setdefault(name, 1)
        if name in ("torch", "F", "tf", "xm") and node.args and isinstance(node.args[0], ast.Name):
            if func.attr not in ("tensor", "as_tensor", "device", "from_numpy", "save", "load", "is_tensor", "convert_to_tensor"):
                found[node.args[0].id] = 2 if name != "torch" or func.attr[:1].islower() else 1
    if func.attr in ("cross_entropy", "mse_loss", "nll_loss", "binary_cross_entropy_with_logits"):
        for argument in node.args[:2]:
            if isinstance(argument, ast.Name):
                found[argument.id] = 2
