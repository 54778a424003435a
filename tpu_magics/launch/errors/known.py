"""Errors that libraries and Python raise in a training function: one row for each, found by its text. The more specific
row stands first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

TORCH_TPU = "torch_tpu"


@dataclass(frozen=True)
class KnownError:
    """`pattern`: of the exception's text, with its type before it ("KeyError: 'x'"). `what`: what the rank did, after
    "The rank "; `why` and `todo` as in Explanation. In these are the pattern's groups, {said}, {device} (how a rank's
    device is written), {kind} (of the device) and {reported} (what the worker's output says of a failure). `framework`:
    only where this package is installed."""

    name: str
    pattern: str
    what: str
    why: str
    todo: str
    framework: str = ""

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
        if not base.raised(outcome) or (self.framework and not _has(failure, self.framework)):
            return None
        kind, text = base.error_type(outcome), base.error_text(outcome)
        words = self.words(f"{kind}: {text}", failure, outcome)
        if words is None:
            return None
        what, why, todo = (_filled(part, words) for part in (self.what, self.why, self.todo))
        said = f"{kind}: {base.one_line(text)}" if text else kind
        return Explanation(
            f"Rank {outcome.rank} raised {said}",
            f"{base.raised_where(failure, outcome)} The rank {what} {why}".strip(),
            f"{todo} {base.UNCHANGED}",
            base.rest(text),
        )

    def words(self, error: str, failure: Failure, outcome: WorkerOutcome) -> dict[str, str] | None:
        """What stands for the names in its texts, for an error with its type; None if it is another one."""
        match = re.search(self.pattern, error, re.DOTALL)
        if match is None:
            return None
        return {**_words(failure, outcome), **{name: value or "" for name, value in match.groupdict().items()}}


def advice(error: str, failure: Failure, outcome: WorkerOutcome) -> str:
    """What to do about an error, given with its type, that another process of the rank raised; "" if none is known."""
    for one in EXPLAINERS:
        if (not one.framework or _has(failure, one.framework)) and (words := one.words(error, failure, outcome)):
            return _filled(one.todo, words)
    return ""


def _words(failure: Failure, outcome: WorkerOutcome) -> dict[str, str]:
    reported = base.line_with(r"RESOURCE_EXHAUSTED|failed: |[Oo]ut of memory", base.plain(outcome.log_tail))
    tpu = _has(failure, TORCH_TPU)
    return {
        "said": base.one_line(base.error_text(outcome)).rstrip("."),
        "device": '"tpu"' if tpu else "torch_xla.device()",
        "kind": "tpu" if tpu else "xla",
        "reported": f"It reported: {reported}" if reported else "Its output may name it: %tpu_logs.",
    }


def _filled(text: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", " ".join(value.split()))
    return text


def _has(failure: Failure, package: str) -> bool:
    return any(name.replace("-", "_") == package and version for name, version in failure.versions.items())


_SIZES = (
    "Sizes that work for one batch may fail for the last, shorter one, or after a layer that changes them.",
    "Print the shapes before that line (`print(x.shape)`: it waits for no values), and make them fit.",
)

# Texts of torch 2.9 and 2.15, torch_xla 2.9.0, torch_tpu 0.2.0, transformers 5.24, accelerate 1.15, Lightning 2.6 and
# CPython 3.10 to 3.13.
# What torch.compile met: before the explanation of any error of a compiled function.
COMPILER = (
    KnownError(
        "inlining",
        r"failed to inline functions in MLIR module",
        "could not compile a function for the TPU.",
        "It is a fault of torch_tpu 0.2, seen with LayerNorm in a function that torch.compile compiles under "
        "torch.autocast in bf16: its kernel gets inputs of two types.",
        'Three ways work: `model.to("tpu", torch.bfloat16)` and inputs in bf16, without autocast; float32; '
        'or LayerNorm outside of autocast: `with torch.autocast("tpu", enabled=False): x = norm(x.float())`.',
        framework=TORCH_TPU,
    ),
    KnownError(
        "compiler_backend",
        r"backend='inductor'\) on TPU|backend='inductor' raised|does not support torch\.compile\(\.\.\., dynamic=True",
        "asked torch.compile for what TorchTPU does not have.",
        "Inductor makes code for GPUs and CPUs, and a TPU's programs have fixed shapes.",
        "Write torch.compile(model), without backend and dynamic.",
        framework=TORCH_TPU,
    ),
)
DEVICES = (
    KnownError(
        "another_plugin",
        r"Unexpected option name passed to PJRT_Client_Create: cpu_device_count",
        "could not start XLA in a TPU's place.",
        "The plugin that TPU_MAGICS_PJRT_CPU names is not XLA's plugin for the CPU.",
        "Correct TPU_MAGICS_PJRT_CPU, or unset it, and restart the kernel; or rehearse without: "
        "%tpu_init --no-tpu-branch.",
    ),
    KnownError(
        "no_device_memory",
        r"GetAllocatorStats is not supported",
        "asked how much memory its device uses (xm.get_memory_info).",
        "Only a TPU reports that: XLA:CPU uses the host's memory.",
        "Ask only there (`if xm.xla_device_kind() != 'cpu':`); %tpu_preflight tells the memory that a step needs on a "
        "TPU.",
    ),
    KnownError(
        "torch_xla_missing",
        r"No module named 'torch_xla",
        "imports torch_xla, which is not installed: here TorchTPU trains.",
        "torch_xla and TorchTPU need different versions of torch and do not go into one environment.",
        'Replace what uses it: `torch_xla.device()` and `xm.xla_device()` by "tpu"; `torch_xla.sync()`, '
        "`xm.mark_step()` "
        "and `MpDeviceLoader` by nothing; `xm.optimizer_step(opt)` by `opt.step()`; `xm.master_print` by `print`.",
        framework=TORCH_TPU,
    ),
    KnownError(
        "xla_under_torch_tpu",
        r"arguments from the 'XLA' backend|(?:device type|device string|device): ?'?xla\b",
        "used the device xla, which is torch_xla's: here TorchTPU trains.",
        'TorchTPU\'s device is "tpu".',
        'Write "tpu" instead: `model.to("tpu")`, `torch.autocast("tpu", torch.bfloat16)`.',
        framework=TORCH_TPU,
    ),
    KnownError(
        "cuda",
        r"Torch not compiled with CUDA|Cannot re-initialize CUDA in forked|Found no NVIDIA driver"
        r"|No CUDA GPUs are available|CUDA (?:driver|unknown) "
        r"|not compiled with CUDA support|libcuda|No supported gpu backend found",
        "used CUDA, and there is no GPU.",
        "In a run the model trains on the run's device.",
        'Write `device = {device}` and `.to(device)` instead of `.cuda()` and "cuda". With Accelerate: '
        'accelerator.device; with Lightning: Trainer(accelerator="auto").',
    ),
    KnownError(
        "cuda_checkpoint",
        r"Attempting to deserialize object on a CUDA device",
        "loaded a file whose tensors were saved on a GPU.",
        "Without map_location, torch.load puts tensors back on the device that they were saved on.",
        'Write torch.load(path, map_location="cpu"), and move the model to the device afterwards.',
    ),
    KnownError(
        "nccl",
        r"NCCL|No backend type associated with device type",
        "used torch.distributed with a backend that this run does not have.",
        "NCCL is for GPUs.",
        'Write dist.init_process_group("{kind}"), with torch_xla also init_method="xla://"; or leave '
        "torch.distributed to "
        "Accelerate or Trainer.",
    ),
    KnownError(
        "no_process_group",
        r"Default process group has not been initialized",
        "used torch.distributed before it was started.",
        "DistributedDataParallel, DistributedSampler without num_replicas, and collectives of torch.distributed need a "
        "process group.",
        'Call dist.init_process_group("{kind}") first; on one rank leave DistributedDataParallel out; or use '
        "Accelerate, "
        "which averages gradients itself.",
    ),
    KnownError(
        "failed_earlier",
        r"a required argument is in a failed state",
        "used the result of an operation that had failed.",
        "TorchTPU runs operations in the background, and reports a failure where its result is used. {reported}",
        "If it ran out of memory: lower the batch size, shorten the sequences, use bf16 (--precision bf16), recompute "
        "activations. If an operation cannot be compiled (LayerNorm under torch.autocast in bf16 cannot, with "
        "torch_tpu 0.2): "
        '`model.to("tpu", torch.bfloat16)` without autocast works, and float32.',
        framework=TORCH_TPU,
    ),
    KnownError(
        "grad_scaler",
        r"_amp_\w*non_finite\w*|GradScaler",
        "used a GradScaler, which the device does not have.",
        "It scales the loss for fp16, whose range is small. bf16 has the range of float32.",
        "Remove it (`loss.backward(); optimizer.step()`), or make it with enabled=False.",
    ),
    KnownError(
        "rehearsal_lacks",
        r"hLO opcode `(?P<op>\w+)` is not supported by XLA:CPU",
        "used an operation that XLA:CPU does not have: {op}.",
        "A rehearsal compiles for the CPU; whether a TPU has it is not known here (%tpu_preflight tells).",
        "Replace the operation. Of sparse gradients: nn.Embedding(..., sparse=False).",
    ),
    KnownError(
        "packed_sequence",
        r"data is not allocated yet|_pack_padded_sequence|lengths' argument should be a 1D CPU int64 tensor",
        "used a packed sequence.",
        "Packing makes tensors whose shape depends on the lengths, and reads memory that a tensor of the device "
        "has not.",
        "Leave pack_padded_sequence out: give the LSTM or GRU the padded batch, take the outputs at the last real "
        "positions (`out[torch.arange(n), lengths - 1]`), and mask the loss. For a bidirectional one, pack and "
        "run it on "
        "the CPU.",
    ),
    KnownError(
        "lazy_module",
        r"uninitialized parameter",
        "moved a model with lazy layers (LazyLinear, LazyConv2d, ...) before their sizes were known.",
        "They are known after the first batch.",
        "Give the model one batch on the CPU first (`model(x)`), or write the sizes: nn.Linear(3, 4) for "
        "nn.LazyLinear(4).",
    ),
    KnownError(
        "sparse",
        r"'Sparse(?:XLA|PrivateUse1|CPU)' backend|[Ss]parse (?:tensors?|gradients?).{0,60}(?:not supported"
        r"|not implemented)"
        r"|SparseAdam does not support|SparseXLA|[Ss]parseTensorImpl",
        "used a sparse tensor or gradient, which the device does not have.",
        "",
        "A tensor of yours: `x.to_dense()` on the CPU before it moves. A gradient: nn.Embedding(..., sparse=False) "
        "(EmbeddingBag likewise), and Adam or SGD instead of SparseAdam.",
    ),
    KnownError(
        "scripted",
        r"torch\._C\.(?:ParameterDict|BufferDict|ModuleDict)"
        r"|incompatible function arguments.{0,600}Script(?:Module|Object)",
        "used a scripted model (torch.jit), which cannot move to the device.",
        "",
        "Train the model itself, without torch.jit.script or trace, and script it afterwards: "
        "`torch.jit.script(model)` in the next cell.",
    ),
    KnownError(
        "not_lowered",
        r"Error while lowering: (?:\[\] )?(?P<op>[\w:]+).{0,600}?XLA builder error: (?:\w+: )?(?P<said_by_xla>[^\n]+)",
        "used {op} on tensors that do not fit: {said_by_xla}",
        "The operation was traced earlier, in your function; it failed where the graph was compiled. The line is where "
        "that happened.",
        "Look for {op} before that line, and print the shapes of its inputs.",
    ),
    KnownError(
        "no_kernel",
        r"Could not run '(?P<op>[\w:.]+)' with arguments from the '(?P<backend>\w+)' backend"
        r"|operator '(?P<op2>[\w:.]+)' is not implemented for TPU",
        "used an operation that the device does not have: {op}{op2}.",
        "PyTorch has it for the CPU or CUDA only.",
        "Run it on the CPU before the training step (`x.cpu()`, then `.to(device)`), or replace it by operations "
        "on whole "
        "tensors. %tpu_check knows some of them.",
    ),
    KnownError(
        "flash_attention",
        r"FlashAttention\d? has been toggled on|[Ff]lash ?_?[Aa]ttn\w* .{0,60}(?:not installed|not available|CUDA)",
        "asked for FlashAttention, which is for GPUs.",
        "",
        'Write attn_implementation="sdpa", or leave it out.',
    ),
    KnownError(
        "quantized",
        r"bitsandbytes|'quantized::|'Quantized(?:CPU|CUDA|XLA)' backend|auto-gptq",
        "used quantized weights, which are for GPUs or the CPU.",
        "",
        "Load the model in bf16 (torch_dtype=torch.bfloat16) and train adapters with peft's LoRA: that needs no "
        "quantization.",
    ),
    KnownError(
        "removed_function",
        r"module 'torch_xla[\w.]*' has no attribute '(?P<name>\w+)'|cannot import name '(?P<name2>\w+)' from 'torch_xla"
        r"|No module named '(?P<name3>torch_xla\.[\w.]+)'",
        "used {name}{name2}{name3} of torch_xla, which this version does not have.",
        "It was removed, or has another name.",
        "Run %tpu_check: TPU412 names what took its place (`xr.world_size()`, `torch_xla.sync()`, `torch_xla.launch`).",
    ),
    KnownError(
        "colab_address",
        r"KeyError: .*(?:COLAB_TPU_ADDR|XRT_TPU_CONFIG)",
        "reads a variable of Colab's old TPU nodes.",
        "Colab's TPUs are on the machine itself since 2023; there is no address.",
        "Remove the line. %tpu_init shows the TPU.",
    ),
)

LIBRARIES = (
    KnownError(
        "lightning_accelerator",
        r"`?XLAAccelerator`? can not run on your system|invalid accelerator name",
        "could not make Lightning's Trainer.",
        "",
        'Write Trainer(accelerator="auto") in a cell after %tpu_init: in a run that is the run\'s device.',
    ),
    KnownError(
        "even_batches",
        r"even_batches=False` when the batch sampler has no batch size|even_batches=False",
        "could not share a loader over the ranks.",
        "Accelerate makes batches of one size for all ranks, and this loader does not say its batch size "
        "(batch_size=None, or a batch sampler of your own).",
        "Write Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False)), or let the DataLoader "
        "make the "
        "batches (batch_size=..., drop_last=True).",
    ),
    KnownError(
        "hub",
        r"(?:couldn't|Can't|can't) (?:connect to|load|reach).{0,200}(?:huggingface|hub|from_pretrained)"
        r"|is not a (?:local folder|valid model identifier)|Repository Not Found|GatedRepo|LocalEntryNotFound"
        r"|RepositoryNotFound"
        r"|huggingface\.co|401 Client Error",
        "could not load a model or a data set.",
        "",
        "Check the name, and log in if it is private or gated (`from huggingface_hub import login`). Load it in "
        "a cell before "
        "the run: workers take it from there.",
    ),
    KnownError(
        "no_padding",
        r"activate truncation and/or padding|expected sequence of length \d+ at dim \d+ \(got \d+\)",
        "could not make a tensor of texts of different lengths.",
        "",
        'Pad to one length: tokenizer(..., padding="max_length", max_length=128, truncation=True). One length '
        "also means one "
        "compile.",
    ),
    KnownError(
        "no_module",
        r"No module named '(?P<name>[\w.]+)'",
        "imports {name}, which is not installed.",
        "Workers use the notebook's Python and its folders.",
        "Run `%pip install {name}` (some packages have another name than their module) and restart the kernel; a "
        "file of "
        "your own: put its folder on sys.path before the import.",
    ),
    KnownError(
        "no_name_in_module",
        r"cannot import name '(?P<name>\w+)' from (?:partially initialized module )?'(?P<module>[\w.]+)'",
        "could not import {name} from {module}.",
        "The installed version of the package does not have it, or a file of yours has the name of the package.",
        "Look at the version (`import {module}; {module}.__version__`), and install the one that your code was "
        "written for.",
    ),
    KnownError(
        "weights_only",
        r"Weights only load failed|weights_only",
        "could not load a file that holds more than tensors.",
        "torch.load accepts only tensors and plain containers by default.",
        "If you trust the file: torch.load(path, weights_only=False). Better, save model.state_dict().",
    ),
    KnownError(
        "state_dict",
        r"Error\(s\) in loading state_dict for (?P<model>\w+)",
        "could not load weights into {model}.",
        "The names or sizes of the file are not those of the model; the lines below name them.",
        "Make the model with the same settings as the saved one. If only the prefix of the names differs (module., "
        "_orig_mod.), remove it from the keys; if some may be missing: load_state_dict(..., strict=False).",
    ),
    KnownError(
        "collate",
        r"stack expects each tensor to be equal size|resize storage that is not resizable in a DataLoader worker"
        r"|each element in list of batch should be of equal size|inhomogeneous shape",
        "has items of different sizes in one batch.",
        "A batch is one tensor. {said}.",
        "Pad in a collate_fn: DataLoader(..., collate_fn=...), with torch.nn.utils.rnn.pad_sequence, and to a "
        "fixed length: "
        "each new length is another compile.",
    ),
    KnownError(
        "not_resizable",
        r"[Tt]rying to resize storage that is not resizable",
        "resized a tensor (`resize_`, `out=`) whose memory is not its own.",
        "Its memory is NumPy's or a file's, or NumPy has had a view of it (`x.numpy()`).",
        "Resize a copy: x = x.clone(). Or give `out=` a tensor of the size of the result.",
    ),
    KnownError(
        "collate_type",
        r"default_collate: batch must contain tensors.{0,80}found (?P<type>.+)",
        "cannot make a batch of objects of the type {type}.",
        "A DataLoader stacks tensors, arrays, numbers, strings, dicts and lists.",
        "Return tensors from the data set (for an image: transforms.ToTensor()), or write a collate_fn.",
    ),
)

TENSORS = (
    KnownError(
        "second_backward",
        r"backward through the graph a second time",
        "called backward() twice through one graph.",
        "A graph is freed by its backward(). It is also reached again by a value kept from an earlier step (a "
        "hidden state, "
        "a running loss).",
        "Add the losses and call backward() once; keep values between steps with `.detach()`; or the first time write "
        "backward(retain_graph=True).",
    ),
    KnownError(
        "in_place",
        r"modified by an inplace operation",
        "changed a tensor in place that backward() needs.",
        "",
        "Write `x = x + 1` instead of `x += 1` (also relu_(), index assignments, nn.ReLU(inplace=True)) on what "
        "the loss "
        "depends on.",
    ),
    KnownError(
        "leaf_in_place",
        r"leaf Variable that requires grad.{0,60}in-place",
        "changed a parameter in place.",
        "Autograd records what happens to parameters.",
        "Do it within `with torch.no_grad():`.",
    ),
    KnownError(
        "no_gradient",
        r"does not require grad and does not have a grad_fn",
        "called backward() on a value that depends on no parameter.",
        "The loss was computed within torch.no_grad() or from a detached tensor (.detach(), .item(), .data), or "
        "all parameters "
        "are frozen.",
        "Compute the loss from the model's outputs, with gradients on, and check "
        "`[n for n, p in model.named_parameters() if p.requires_grad]`.",
    ),
    KnownError(
        "not_scalar",
        r"grad can be implicitly created only for scalar outputs",
        "called backward() on a tensor with more than one value.",
        "A loss is one number.",
        'Write loss.mean().backward(), or leave reduction="none" out of the loss.',
    ),
    KnownError(
        "numpy_of_gradient",
        r"Can't call numpy\(\) on Tensor that requires grad",
        "converted a tensor that requires gradients to NumPy.",
        "NumPy knows no gradients, and reads host memory.",
        "Write `x.detach().cpu().numpy()`.",
    ),
    KnownError(
        "non_leaf_copy",
        r"Only Tensors created explicitly by the user.{0,80}support the deepcopy|non-leaf Tensor",
        "used a tensor that was computed where a parameter is needed.",
        "`.to(device)` of a tensor that requires gradients is a computed one.",
        "Move it first and ask for gradients then: torch.ones(2, device=device, requires_grad=True), or "
        "nn.Parameter in a module "
        "that is moved. A copy: `x.detach().clone()`.",
    ),
    KnownError(
        "empty_optimizer",
        r"optimizer got an empty parameter list",
        "made an optimizer without parameters.",
        "The model has none here, they are all frozen, or a generator (model.parameters()) was used up.",
        "Pass model.parameters() of the model that is trained; layers in a plain list belong into nn.ModuleList.",
    ),
    KnownError(
        "one_value_per_channel",
        r"Expected more than 1 value per channel when training",
        "gave BatchNorm a batch of one.",
        "BatchNorm needs more than one value to compute a variance. The last batch of an epoch is often shorter.",
        "Write DataLoader(..., drop_last=True), which also saves a compile.",
    ),
    KnownError(
        "out_of_range",
        r"index out of range in self|Target -?\d+ is out of bounds|index -?\d+ is out of bounds"
        r"|selected index k out of range",
        "used an index that is outside.",
        "On the device such an index is not checked: it gives a wrong value instead.",
        "Compare it with the size: labels with the number of classes, token ids with the vocabulary "
        "(`ids.max()`, `model.config.vocab_size`; resize_token_embeddings after adding tokens).",
    ),
    KnownError(
        "float64",
        r"different precisions.{0,200}\bf64\b|got Double|Found dtype Double|(?:Double and|double != ) ?[Ff]loat",
        "mixed float64 with float32.",
        "NumPy's arrays are float64, and torch.from_numpy and torch.tensor keep that. XLA may notice it only where the "
        "step is compiled, at the sync.",
        "Write `.float()`, for the features and for the targets: torch.from_numpy(x).float().",
    ),
    KnownError(
        "inductor",
        r"InductorError: KeyError: 'xla'|_inductor.{0,400}'xla'",
        "compiled for a GPU or the CPU with torch.compile, whose default backend does not know XLA.",
        "XLA compiles each step anyway.",
        'Leave torch.compile out, or write torch.compile(model, backend="openxla").',
    ),
    KnownError(
        "dtypes",
        r"expected scalar type \w+ but found \w+|Seen floating point types of different precisions"
        r"|Autograd not support dtype: (?:Long|Int)|have the same dtype|Input type \(.{0,40}should be the same"
        r"|expected dtype|scalar types?: Long|not implemented for '(?:Half|BFloat16|Long|Int|Float|Bool)'"
        r"|can't be cast to|Found dtype \w+ but expected",
        "mixed types of numbers.",
        "",
        "Convert the inputs: `.float()` for features and regression targets, `.long()` for class labels and token ids, "
        '`.to(model.dtype)` for a model in bf16; or compute within torch.autocast("{kind}", dtype=torch.bfloat16).',
    ),
    KnownError(
        "between_0_and_1",
        r"should be between 0 and 1|probability tensor contains|invalid multinomial distribution",
        "gave numbers that are no probabilities.",
        "",
        "Use the loss that takes logits (binary_cross_entropy_with_logits, cross_entropy), or softmax first; "
        "look for NaN.",
    ),
    KnownError(
        "sizes",
        r"shapes cannot be multiplied|cannot matrix-multiply|Cannot infer shape for|sizes are not compatible"
        r"|must match the size of tensor|shape '\[.*?\]' is invalid for input of size"
        r"|[Ii]ncompatible (?:shapes|dimensions|sizes)|[Ss]izes of tensors must match|same reduction dim|size mismatch"
        r"|to have \d+ channels, but got|Expected \d+D(?: or \d+D)? |could not be broadcast|shape mismatch"
        r"|Check failed: .{0,80}(?:sizes|shape)|Expected input batch_size|Expected hidden\["
        r"|[Cc]annot (?:broadcast|be broadcast)"
        r"|must be specified with equal sizes|The expanded size of the tensor",
        "used tensors whose sizes do not fit.",
        *_SIZES,
    ),
    KnownError(
        "one_value",
        r"more than one value is ambiguous|cannot be converted to Scalar|only one element tensors can be converted",
        "used a tensor of several values as one.",
        "",
        "Write `.any()`, `.all()`, `.sum()` or `.mean()` first. In a training step keep it on the device: torch.where.",
    ),
    KnownError(
        "no_storage",
        r"invalid python storage|Cannot access (?:the )?data pointer|doesn't have storage",
        "read the memory of a tensor on the device.",
        "A tensor of the device has no memory that the host can read. Libraries for the CPU or CUDA do so "
        "(saving, shared memory, custom kernels).",
        "Give them copies: `x.detach().cpu()`, `{name: p.cpu() for name, p in model.state_dict().items()}`.",
    ),
    KnownError(
        "generator_device",
        r"Expected a '(?P<wanted>[\w:]+)' (?:device type for generator"
        r"|generator).{0,40}(?:but )?found '(?P<found>[\w:]+)'"
        r"|[Gg]enerator.{0,60}device",
        "used a random generator of another device.",
        "",
        "Draw on the CPU with the generator and move the numbers: torch.randn(4, generator=g).to(device); or use "
        "torch.manual_seed without a generator.",
    ),
)

PYTHON = (
    KnownError(
        "no_position",
        r"IndexError: (?:list|tuple|string|deque|pop from|range object)",
        "asked for a position that there is not.",
        "",
        "Print the length (`len(x)`) before that line: positions begin at 0, so the last one is len(x) - 1.",
    ),
    KnownError(
        "wrong_index",
        r"IndexError: (?:tensors used as indices must be|only integers|arrays used as indices|too many indices)",
        "used an index of a wrong type or number.",
        "",
        "Convert it: `index.long()` (torch), `index.astype(int)` (NumPy), `int(index)`; and give no more indices than "
        "`x.shape` has dimensions.",
    ),
    KnownError(
        "sqlite_thread",
        r"SQLite objects created in a thread can only be used in that same thread",
        "used a database connection of the notebook.",
        "A rank works in a forked process, and in a thread of its own; SQLite's connections must not pass a fork.",
        "Connect in the training function: `connection = sqlite3.connect(path)`.",
    ),
    KnownError(
        "no_file",
        r"(?:FileNotFoundError|OSError|RuntimeError): .{0,200}(?:No such file or directory|does not exist|not found)",
        "could not find a file.",
        "Workers run in the notebook's folder (`%pwd`).",
        "Check the path with `!ls`, write it in full, or make the folder first: os.makedirs(folder, exist_ok=True).",
    ),
    KnownError(
        "not_imported",
        r"name '(?P<name>tpu_magics|torch_xla|torch|xm|xr|np|nn|F)' is not defined",
        "used {name}, which is not imported.",
        "The magics import nothing into the notebook.",
        "Write `import tpu_magics`, `import torch_xla`, `import torch_xla.core.xla_model as xm`, ... in a cell before.",
    ),
    KnownError(
        "no_name",
        r"NameError: (?:name|free variable) '(?P<name>\w+)'|name '(?P<name2>\w+)' is not defined",
        "used {name}{name2}, which is not defined.",
        "A worker has the names that the notebook had when the run began.",
        "Run the cell that defines {name}{name2} first, or check its spelling.",
    ),
    KnownError(
        "unbound",
        r"UnboundLocalError: .*?variable '(?P<name>\w+)'",
        "used {name} before it got a value.",
        "A name that is assigned anywhere in a function belongs to the function.",
        "Assign it first, or write `global {name}` (in a nested function nonlocal) to change the notebook's.",
    ),
    KnownError(
        "none",
        r"'NoneType' object",
        "used a value that is None.",
        "Often a gradient before backward(), a function without `return`, or an argument that was left out.",
        "Print the value before that line; for gradients test `if p.grad is not None`.",
    ),
    KnownError(
        "attribute",
        r"AttributeError: .*?has no attribute '(?P<name>\w+)'",
        "used {name}, which is not there.",
        "It may have another name in the installed version, or the object is of another type than expected.",
        "Look at `type(x)` and `dir(x)` in a cell, and compare the installed version with the one that your code "
        "was written "
        "for.",
    ),
    KnownError(
        "arguments",
        r"TypeError: .*?(?:missing \d+ required|takes .*? positional|unexpected keyword argument|got multiple values)",
        "called a function with other arguments than it has.",
        "",
        "Compare the call with the signature (`help(function)`). The function of a %%tpu_train cell gets the "
        "ARGs of its "
        "line: %%tpu_train model loader.",
    ),
    KnownError(
        "recursion",
        r"RecursionError",
        "called functions within each other without an end.",
        "",
        "Look at the functions that repeat in the stack below; one needs a case in which it does not call itself.",
    ),
    KnownError(
        "used_up",
        r"^StopIteration: *$",
        "asked for the next item of an iterator that has none left.",
        "",
        "Iterate with a `for` loop, make the iterator again before that line, or give next() a default: "
        "next(batches, None).",
    ),
    KnownError(
        "no_permission",
        r"PermissionError: \[Errno 1\] Operation not permitted$",
        "asked the system for something that its account may not do: to send a signal to a process of another "
        "account, to raise a priority or a limit, to change an owner.",
        "",
        "Leave the call out, or run it in a shell with the rights that it needs.",
    ),
    KnownError(
        "signal_handler",
        r"ValueError: signal only works in main thread",
        "set a handler of a signal outside of its main thread.",
        "A worker runs the function in a thread of its own, as torch_xla does where it drives several devices.",
        "Leave the handler out: an interrupt, --timeout and SIGTERM stop the run, and save first where there are "
        "checkpoints. A library that sets one usually has an option to turn it off.",
    ),
    KnownError(
        "permission",
        r"PermissionError",
        "may not read or write a file.",
        "",
        "Use a folder of your own (os.path.expanduser('~'), /tmp), or change the owner of that one.",
    ),
    KnownError(
        "connection",
        r"Connection(?:Error|Refused|Reset)|ConnectTimeout|Max retries exceeded|Name or service not known"
        r"|URLError|SSLError"
        r"|Temporary failure in name resolution",
        "could not reach a server.",
        "",
        "Download what you need in a cell before the run. On Kaggle turn Internet on in the notebook's settings.",
    ),
)

EXPLAINERS = (*DEVICES, *LIBRARIES, *TENSORS, *PYTHON)
