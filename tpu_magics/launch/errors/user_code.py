"""Exceptions of the training function: one function for each known error of transformers' Trainer, Accelerate,
torch_xla (SPMD, versions) and the user's code, and last, any other exception."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base, known
from tpu_magics.launch.errors.base import Explanation
from tpu_magics.launch.options import given_options
from tpu_magics.runs import origin

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome
    from tpu_magics.runs.events import Frame


# -- Trainer and Accelerate -------------------------------------------------------------------------------------------

# As in accelerate 1.15.0 (data_loader.py: DataLoader, BatchSamplerShard and IterableDatasetShard have the same text;
# utils/memory.py) and transformers 5.23.0 (trainer.py).
_SPLIT = re.compile(
    r"in `split_batches` mode, the batch size \((\d+|None)\) needs to be a round multiple of the number of processes "
    r"\((\d+)\)"
)
_SHARDS = "accelerate/data_loader.py"
_NONE_FITS = "No executable batch size found, reached zero."
_EVALUATION = "Evaluation hit an out-of-memory error."
_CTC_LENGTH = re.compile(r"Expected input_lengths to have value at most (\d+), but got value (\d+)")
_HISTOGRAM = re.compile(r"\"histogram_cpu\" not implemented for '(?:Int|Long|Short|Byte|Char)'")


def split_batches(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A batch that cannot be split evenly over the ranks."""
    match = _SPLIT.search(base.error_text(outcome))
    if not match:
        return None
    size, ranks = match[1], int(match[2])
    return Explanation(
        f"Rank {outcome.rank}: a batch size of {size} cannot be split over {ranks} ranks{base.at(failure, outcome)}.",
        "With split_batches=True every batch of the loader is split into equal parts, one for each rank.",
        f"Use a batch size that is a multiple of {ranks}{_nearest(size, ranks)}; or set split_batches=False: each rank "
        f"then takes full batches (the effective batch size is {ranks} times that of the loader).",
    )


def _nearest(size: str, ranks: int) -> str:
    """` (6 or 9)`: the multiples around a size."""
    if not size.isdigit():
        return ""
    below = int(size) // ranks * ranks
    return f" ({below} or {below + ranks})" if below else f" ({ranks})"


def unbatched_loader(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A DataLoader without a batch sampler, of which accelerate would give each rank some batches."""
    inside = base.stack_of(failure, outcome)[-1:]
    if not any(one.path.endswith(_SHARDS) and one.function.startswith("_iter_with") for one in inside):
        return None
    if "'NoneType' object is not iterable" not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank}: a DataLoader without batches cannot be divided by rank{base.at(failure, outcome)}.",
        "It was made with batch_size=None, as for a dataset whose items are batches. accelerate divides the batches of "
        "the loader's batch sampler, and such a loader has none.",
        "Give the DataLoader a batch_size and a dataset of single samples. Or do not prepare it: let rank r take the "
        "items r, r + n, ... (`torch.utils.data.Subset(data, range(accelerator.process_index, len(data), "
        f"accelerator.num_processes))`), and send them to accelerator.device. {base.UNCHANGED}",
    )


def no_batch_fits(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """auto_find_batch_size found no batch size."""
    if _NONE_FITS not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} found no batch size that fits into memory{base.at(failure, outcome)}.",
        "auto_find_batch_size (find_executable_batch_size) tried all sizes down to 1: the model, its gradients and the "
        "optimizer state alone take too much.",
        "Use bf16 (--precision bf16), shorten the sequences, recompute activations (gradient checkpointing), or shard "
        'the model (fsdp="full_shard" with fsdp_config={"xla": True}).',
    )


def evaluation_does_not_fit(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The evaluation batch is too large; auto_find_batch_size only searches the training batch size."""
    if _EVALUATION not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} ran out of memory during evaluation{base.at(failure, outcome)}.",
        "auto_find_batch_size only searches the batch size for training.",
        "Set a smaller per_device_eval_batch_size (with the batch size found for training, one compile less is "
        "needed).",
    )


def experts_by_histogram(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A mixture of experts that counts the tokens of each with torch.histc (transformers 5, integrations/moe.py)."""
    if not _HISTOGRAM.search(base.error_text(outcome)):
        return None
    return Explanation(
        f"Rank {outcome.rank} counts with an operation that XLA does not have{base.at(failure, outcome)}: torch.histc "
        "of whole numbers.",
        "It would run on the host's CPU, which has none for whole numbers either. A mixture of experts of transformers "
        'uses it by default (experts_implementation="grouped_mm"), to group the tokens by their experts.',
        'Create the model with experts_implementation="batched_mm" (from_pretrained, from_config), or call '
        'model.set_experts_implementation("batched_mm"): its shapes do not depend on the tokens, as XLA needs it. Of '
        "your own code: torch.histc(x.float(), ...).",
    )


def ctc_length(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Lengths for CTC that were divided on the device: torch_xla 2.9.0 divides whole numbers as floating point ones,
    which XLA_USE_BF16 makes bf16."""
    match = _CTC_LENGTH.search(base.error_text(outcome))
    if not match:
        return None
    return Explanation(
        f"Rank {outcome.rank} has a length of {match[2]} for CTC, but {match[1]} frames{base.at(failure, outcome)}.",
        "With --precision bf16 (XLA_USE_BF16), a division of whole numbers on the device is computed in bf16, which "
        "has 8 significant bits: lengths that are divided there, as transformers divides them by the strides of "
        "convolutions, become inexact. Without bf16, the lengths themselves do not fit the input.",
        'Leave out --precision and XLA_USE_BF16, and write `torch.autocast("xla", dtype=torch.bfloat16)` around the '
        "model or `model.to(torch.bfloat16)`: both leave whole numbers exact.",
    )


TRAINER = (split_batches, unbatched_loader, no_batch_fits, evaluation_does_not_fit, experts_by_histogram, ctc_length)


# -- SPMD; texts of torch_xla 2.9.0 -----------------------------------------------------------------------------------

_NO_MESH = re.compile(
    r"'NoneType' object has no attribute '(?:get_op_sharding|get_axis_name_idx)'"
    r"|No mesh is provided and no global mesh is set"
    r"|Please enable SPMD via"
)
_UNEVEN = re.compile(
    r"per-host batch size must be divisible by local runtime device count\. "
    r"Per host input data shape = torch\.Size\(\[(\d+)[^\]]*\]\), local_runtime_device_count = (\d+)"
)
_AXIS = re.compile(r"Axis name (\S+) is not defined in the given mesh|mesh must have an axis named '(fsdp)'")
_FSDP_MESH = 'n = xr.global_runtime_device_count(); xs.set_global_mesh(xs.Mesh(range(n), (n, 1), ("fsdp", "tensor")))'


def no_mesh(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A tensor is to be sharded over a mesh, but the run has none."""
    if not _NO_MESH.search(base.error_text(outcome)):
        return None
    return Explanation(
        f"Rank {outcome.rank} shards a tensor over a mesh{base.at(failure, outcome)}, but this run does not use SPMD.",
        "A mesh needs one process with all devices. Only %%tpu_train --spmd starts such a worker and sets the mesh "
        "that xs.get_global_mesh() returns. transformers' fsdp_config with xla_fsdp_v2 needs it too.",
        "Train with %%tpu_train --spmd (on a machine without a TPU: %tpu_init --spmd 8 for 8 virtual devices).",
    )


def uneven_minibatch(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A batch that cannot be split into equal parts."""
    match = _UNEVEN.search(base.error_text(outcome))
    if not match:
        return None
    batch, devices = int(match[1]), int(match[2])
    larger = -(-batch // devices) * devices
    return Explanation(
        f"Rank {outcome.rank} has a batch of {batch}, which cannot be split evenly over {devices} devices"
        f"{base.at(failure, outcome)}.",
        "With ShardingSpec(..., minibatch=True) each device gets an equal part of the batch. A shorter last batch also "
        "causes this error.",
        f"Use a batch size that is a multiple of {devices}, e.g. {larger}, with drop_last=True in the DataLoader; or "
        "omit minibatch=True: torch_xla then pads the batch.",
    )


def unknown_axis(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An axis name that the mesh does not have."""
    match = _AXIS.search(base.error_text(outcome))
    if not match:
        return None
    return Explanation(
        f"Rank {outcome.rank} uses the mesh axis {(match[1] or match[2])!r}, which its mesh does not have"
        f"{base.at(failure, outcome)}.",
        'The mesh of --spmd has the axes "data" and "model". transformers\' Trainer with xla_fsdp_v2 sets a mesh with '
        '"fsdp" and "tensor" instead.',
        f"Use an axis of the mesh, or set another mesh first: {_FSDP_MESH}",
    )


def spmd_process_group(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A process group in a run with a single process."""
    if "XLA backend is not supported with SPMD" not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} created a process group with the backend xla in an SPMD run{base.at(failure, outcome)}.",
        "An SPMD run is one process with all devices, so it has no ranks to connect. XLA adds the collectives to the "
        "graph where tensors are sharded.",
        "Remove dist.init_process_group (Accelerator() and Trainer do not need it). If your code needs a group, use "
        'dist.init_process_group("gloo", init_method="xla://"). To get ranks, use -n instead of --spmd.',
    )


SPMD = (no_mesh, uneven_minibatch, unknown_axis, spmd_process_group)


# -- versions ---------------------------------------------------------------------------------------------------------

_SYMBOL = re.compile(r"_XLAC[\w.\-]*\.so: undefined symbol: ?(\S*)|_XLAC[\w.\-]*\.so: undefined symbol")


def undefined_symbol(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """torch_xla's extension was built for another version of torch."""
    if not _SYMBOL.search(base.evidence(outcome)):
        return None
    installed = base.with_versions(failure, "torch", "torch_xla")
    return Explanation(
        f"Rank {outcome.rank} could not load torch_xla: it was built for another version of torch.",
        f"Installed: {installed or 'unknown'}. torch_xla needs the torch of the same version.",
        f"{_install(failure)}, then restart the kernel.",
    )


def _install(failure: Failure) -> str:
    known = re.match(r"\d+\.\d+\.\d+", failure.versions.get("torch_xla") or failure.versions.get("torch-xla") or "")
    return (
        f"Run `%pip install torch=={known[0]} torch_xla=={known[0]}`" if known else "Install the same version of both"
    )


VERSIONS = (undefined_symbol,)


_INITIALIZED = re.compile(r"Runtime is already initialized|`Accelerator` should only be initialized inside")
_LOOKUP = re.compile(r"Can't get attribute '(\w+)' on <module '__main__'")
_INPUT_TYPES = ("NoInput", "StdinNotImplementedError", "BdbQuit")  # NoInput: see launch/streams.py
_DEVICE = re.compile(
    r"Expected XLA tensor\. Got: (?P<expected>\S+)"
    r"|is not an XLA tensor|the indexed tensor must be an XLA tensor|Input tensor is not an XLA tensor"
    r"|can't convert (?P<numpy>(?:xla|tpu):\d+) device type tensor to numpy|expected tensor to be on tpu, got cpu"
    r"|is on (?:device )?cpu\b.{0,200}\bxla|found at least two devices, (?P<two>\S+ and \S+?)[!,.]",
    re.IGNORECASE | re.DOTALL,
)
_OWN_TYPES = ("TpuMagicsError", "TrainingFailed", "TrainingInterrupted")
_PIPES = "multiprocessing/connection.py"
_DATALOADER = re.compile(r"Caught (\w+) in DataLoader worker process (\d+)\.")


# -- known errors -------------------------------------------------------------------------------------------------


def system_exit(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """sys.exit() or exit() in the function, or in a script."""
    if base.error_type(outcome) != "SystemExit":
        return None
    text, where = base.error_text(outcome), base.at(failure, outcome)
    refused = re.match(r"\d+ \(.*: error: (?P<what>.+)\)", base.one_line(text))
    _, _, words = (refused["what"] if refused else "").partition("unrecognized arguments: ")
    if refused and {word.partition("=")[0] for word in words.split()} & _flags():
        return Explanation(
            f"The command line of the script was refused: {refused['what'].rstrip('.')}.",
            "What stands behind a script's name belongs to the script.",
            f"Write options of %tpu_train before it: %tpu_train {words.rstrip('.')} script.py. {base.UNCHANGED}",
        )
    if refused:
        return Explanation(
            f"The command line of the program was refused: {refused['what'].rstrip('.')}.",
            f"argparse ended rank {outcome.rank}{where}.",
            "A script: write its arguments behind its name, %tpu_train script.py --lr 0.1. A cell has no command line: "
            "`parser.parse_args([])` takes the defaults.",
        )
    said, cause = _and_cause(text)
    if not _EXIT_CODE.fullmatch(said):
        return Explanation(
            f"Rank {outcome.rank} ended the program with an error message: {said}",
            f"It was given to sys.exit(){where}{cause}. Python counts a program that ends with a text as failed.",
            f"Mend what the message names, and run the cell again. {base.UNCHANGED} To end without an error, use "
            "`return` in a function, and sys.exit(0) in a script.",
            base.rest(text),
        )
    why, todo = _EXITS[_place_of_exit(base.user_line(failure, outcome))]
    return Explanation(f"Rank {outcome.rank} called sys.exit({said}).", f"It happened{where}{cause}, and {why}", todo)


def _flags() -> set[str]:
    """The options of %tpu_train."""
    return {flag for _, declared in given_options() for flag in declared.flags}


_EXIT_CODE = re.compile(r"-?\d*|True|False|None")
_NO_RESULT = "ends the worker before it has a result."
_EXITS = {  # by where the line stands: why, and what to do
    "function": (_NO_RESULT, "End the function with `return`, or raise an exception that names the problem."),
    "cell": (
        _NO_RESULT,
        "A cell ends at its last line. To end it earlier, put its lines into a function that ends with `return`, or "
        "raise an exception that names the problem.",
    ),
    "script": (
        "says that the script failed.",
        "Read what the script printed before, here or with %tpu_logs. To end without an error: sys.exit(0).",
    ),
}


def _place_of_exit(line: Frame | None) -> str:
    if line is None or line.function != "<module>":
        return "function"
    return "cell" if line.path.startswith("In [") else "script"


def _and_cause(text: str) -> tuple[str, str]:
    """The first line of a text without the cause that frames.describe() appended, and ", while handling ..." of it."""
    said, *cause = re.split(r" ?\((?=(?:caused by|while handling) \w)", base.one_line(text), maxsplit=1)
    return said, f", {cause[0].removesuffix(')')}" if cause else ""


def keyboard_interrupt(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Code that raises KeyboardInterrupt itself: an interrupt of the run is another reason of its end."""
    if base.error_type(outcome) != "KeyboardInterrupt":
        return None
    said = base.one_line(base.error_text(outcome))
    return Explanation(
        f"Rank {outcome.rank} raised KeyboardInterrupt{f': {said}' if said else ''}",
        f"{base.raised_where(failure, outcome)} The code raised it itself: interrupts of the notebook do not reach the "
        "code of a worker.".strip(),
        "To end early without an error, use `return` in a function, `break` in a loop, sys.exit(0) in a script. For "
        "an error, raise an exception that names the problem.",
    )


def asked_for_input(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """input(), getpass() or a debugger in a worker."""
    text, kind = base.error_text(outcome), base.error_type(outcome)
    if kind not in _INPUT_TYPES and not (kind == "EOFError" and "EOF when reading a line" in text):
        return None
    named = re.match(r"(\S+(?: \S+)?) cannot be used in a worker", text)
    what = f"called {named[1]}" if named else "stopped in pdb" if kind == "BdbQuit" else "requested input"
    return Explanation(
        f"Rank {outcome.rank} {what}{base.at(failure, outcome)}.",
        "A worker is a separate process and cannot read input from the notebook.",
        "Ask for the input in a cell before, and use the name that it has there: `answer = input()`. To debug, call "
        "the function in the notebook with small inputs on the CPU, or print values and read %tpu_logs.",
    )


def already_initialized(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A second launch inside the worker, or the device was used before it."""
    if not _INITIALIZED.search(base.error_text(outcome)):
        return None
    return Explanation(
        f"Rank {outcome.rank} started processes although the XLA runtime is already initialized in it"
        f"{base.at(failure, outcome)}.",
        "The function used the device (torch_xla.device(), an Accelerator, accelerate's set_seed) and then called "
        "xmp.spawn, torch_xla.launch or notebook_launcher.",
        "Remove that call: %%tpu_train starts the workers. If the notebook itself used the device, restart the kernel, "
        "run %tpu_init first, and use the device only in the function.",
    )


def not_in_main(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A spawned process looks for a function that exists only in the notebook."""
    match = _LOOKUP.search(base.error_text(outcome))
    if not match:
        return None
    name = match[1]
    return Explanation(
        f"Rank {outcome.rank} started a process that cannot find `{name}`.",
        f'`{name}` is defined in the notebook. A process started with "spawn", or a pickle loaded in another process, '
        "searches for it in a module file.",
        f"Train it with `%tpu_train {name}` instead of starting processes in the function, start them with "
        f'start_method="fork", or move `{name}` into a .py file and import it.',
    )


def autograd_threads(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """pytorch/xla#4174: autograd started its device threads before the XLA device existed."""
    text = base.evidence(outcome)
    if "device_ready_queues_" not in text or "INTERNAL ASSERT" not in text:
        return None
    return Explanation(
        f"Rank {outcome.rank} could not run backward() on the device: autograd has no thread for it.",
        "autograd starts its threads once, at the first backward() of a process, for the devices that exist then. Here "
        "a backward() on the CPU ran first, in the notebook or at the top of the function.",
        "Restart the kernel, run %tpu_init first, and call backward() in the notebook only after training.",
    )


def half_precision(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """fp16 on a device that only has bf16."""
    if "fp16 mixed precision requires" not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} requested fp16 mixed precision, which a TPU does not support.",
        base.one_line(base.error_text(outcome)),
        'Use bf16, which needs no loss scaling: Accelerator(mixed_precision="bf16"), TrainingArguments(bf16=True) or '
        "%%tpu_train --precision bf16.",
    )


def wrong_device(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A tensor on the CPU is used with one on the XLA device."""
    match = _DEVICE.search(base.error_text(outcome))
    if not match or (match["two"] and not re.search("xla|tpu", match["two"])):
        return None
    line = base.at(failure, outcome)
    if match["numpy"]:
        return Explanation(
            f"Rank {outcome.rank} tried to convert a tensor on {match['numpy']} to a NumPy array{line}.",
            "NumPy reads host memory only.",
            "Copy it to the host first (this waits for the device): `tensor.detach().cpu().numpy()`.",
        )
    said = base.one_line(base.error_text(outcome)).rstrip(".!")
    tpu = "'tpu'" if re.search(r"\btpu\b", match[0]) else ""  # TorchTPU's name of the device
    kind = f" (a {match['expected']} is a tensor on the CPU)" if match["expected"] else ""
    return Explanation(
        f"Rank {outcome.rank} mixed a tensor on the CPU with one on the {'TPU' if tpu else 'XLA'} device{line}.",
        f"All tensors of an operation must be on the same device. PyTorch reported: {said}{kind}.",
        f"Move the inputs and the model to the same device before that line: `device = {tpu or 'torch_xla.device()'}`, "
        "`model = model.to(device)`, `x = x.to(device)`. With Accelerate, pass model, optimizer and loaders through "
        "`accelerator.prepare(...)`, and create new tensors with `device=accelerator.device`. Tensors that an earlier "
        "run left in the notebook's objects are on the CPU.",
    )


def closed_socket(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A socket of the notebook, which launch/process.py closed; Python's two-way pipe is one. A closed pipe says only
    EOFError."""
    text, kind = base.error_text(outcome), base.error_type(outcome)
    inside = base.stack_of(failure, outcome)[-1:]
    piped = any(one.path.endswith(_PIPES) for one in inside) and (kind == "EOFError" or "[Errno 9]" in text)
    if "Socket operation on non-socket" not in text and not piped:
        return None
    said = f"{kind}: {base.one_line(text).rstrip('.')}" if text else kind
    thing = "pipe" if piped else "socket"
    made_here = " If it was made in the function, the process at its other end has closed it." if piped else ""
    return Explanation(
        f"Rank {outcome.rank} used a {thing} that is closed{base.at(failure, outcome)}: {said}.",
        "Workers have none of the sockets that the notebook opened, because they would keep the kernel's ports in use. "
        "The connections of clients (databases, HTTP sessions) and multiprocessing.Pipe() are sockets, too."
        f"{made_here}",
        "Open it in the training function. To send objects between the function and the notebook, use "
        f"multiprocessing.Queue() or multiprocessing.Pipe(duplex=False). {base.UNCHANGED}",
    )


# -- any exception ------------------------------------------------------------------------------------------------


def our_own(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An error of tpu_magics, raised in the worker: its text is complete."""
    if base.error_type(outcome) not in _OWN_TYPES:
        return None
    text, _, details = base.error_text(outcome).partition("\n\n")
    head, _, todo = text.partition("\nWhat to do: ")
    what, _, why = head.partition("\nWhy: ")
    return Explanation(f"Rank {outcome.rank}: {what}", why, todo, tuple(details.splitlines()))


def in_dataloader(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An exception in a DataLoader worker process, which torch passes on as text."""
    text = base.error_text(outcome)
    match = _DATALOADER.search(text)
    if not match:
        return None
    said = base.line_with(rf"^(?:\w+\.)*{match[1]}\b", text) or match[1]
    advice = known.advice(f"{said} in a DataLoader worker", failure, outcome) or "Fix it and run the cell again."
    return Explanation(
        f"Rank {outcome.rank}: a DataLoader worker raised {said}",
        _raised_at(text, failure),
        f"{advice} {base.UNCHANGED} With num_workers=0 you see the full stack.",
    )


# As in torch 2.15.0, _dynamo/exc.py: the error that torch.compile met stands within its own.
_COMPILER_TYPES = frozenset({"TorchRuntimeError", "BackendCompilerFailed"})
_MET = re.compile(
    r"""^backend=.* raised:\s+(?P<kind>\w+): (?P<said>.+)"""
    r"""|\bgot (?P<traced>\w+)\((?P<mark>["'])(?P<text>.*)(?P=mark)\)$""",
    re.MULTILINE,
)


def in_torch_compile(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An exception in code that torch.compile was compiling."""
    text = base.error_text(outcome)
    match = _MET.search(text) if base.error_type(outcome) in _COMPILER_TYPES else None
    if not match:
        return None
    kind, said = match["kind"] or match["traced"], match["said"] or match["text"]
    return Explanation(
        f"Rank {outcome.rank} raised {kind} while torch.compile compiled a function: {base.one_line(said)}",
        base.raised_where(failure, outcome),
        f"Fix it and run the cell again. {base.UNCHANGED}",
        base.rest(text),
    )


def _raised_at(text: str, failure: Failure) -> str:
    """The innermost line of user code in a traceback that is text."""
    frames = re.findall(r'^\s*File "(.+)", line (\d+), in (\S+)\n\s*(.*)$', text, re.MULTILINE)
    own = [row for row in frames if row[0] in failure.cell_names or not origin.is_library(row[0], row[2])]
    if not own:
        return "It was raised while loading the data."
    path, line, function, code = own[-1]
    return f"It was raised at `{code.strip()}` ({failure.cell_names.get(path, path)}, line {line}, in {function})."


def exception(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Any other Python exception."""
    if not base.raised(outcome):
        return None
    text = base.error_text(outcome)
    kind = base.error_type(outcome) or "an exception"
    said = f"{kind}: {base.one_line(text)}" if text else kind
    return Explanation(
        f"Rank {outcome.rank} raised {said}",
        base.raised_where(failure, outcome),
        f"Fix it and run the cell again. {base.UNCHANGED}",
        base.rest(text),
    )


EXPLAINERS = (
    our_own,
    system_exit,
    keyboard_interrupt,
    asked_for_input,
    already_initialized,
    not_in_main,
    autograd_threads,
    half_precision,
    wrong_device,
    closed_socket,
    in_dataloader,
    in_torch_compile,
)
LAST = (exception,)
