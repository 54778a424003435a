"""What a failed run says: recorded texts and their look-alikes, true crashes, and who is to blame."""

from __future__ import annotations

import linecache
import os
import pickle
import re
import shutil
import signal
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_stacks import CELL, CELLS, OURS, SITE, dump_of, raised_by, run_cell
from tpu_magics.errors import TpuMagicsError, TrainingFailed, TrainingInterrupted
from tpu_magics.launch import stacks
from tpu_magics.launch.errors import known
from tpu_magics.launch.errors.diagnosis import EXPLAINERS, blame, diagnose, explain
from tpu_magics.launch.errors.failure import DEVICE_RUNS, Failure, WorkerOutcome
from tpu_magics.runs.events import End, Frame

GIB = 2**30
USER = Frame("In [12]", 14, "training_function", "loss.backward()")
TORCH = Frame(f"{SITE}/torch/autograd/graph.py", 829, "_engine_run_backward", "return run()", library=True)
LAUNCHER = Frame(OURS, 80, "_train", "work.run()", library=True)


def ended(kind: str, text: str = "", stack: tuple[Frame, ...] = (LAUNCHER, USER, TORCH), status: str = "failed") -> End:
    return End(t=0.0, rank=0, status=status, error_type=kind, error_text=text, frames=stack)


def raising(text: str, kind: str = "RuntimeError", rank: int = 0, **more: Any) -> WorkerOutcome:
    stack = more.pop("frames", (LAUNCHER, USER, TORCH))
    return WorkerOutcome(rank, pid=100 + rank, exit_code=1, end=ended(kind, text, stack), **more)


def killed(number: int, rank: int = 0, **more: Any) -> WorkerOutcome:
    return WorkerOutcome(rank, pid=100 + rank, signal=number, **more)


def finished(rank: int = 0, **more: Any) -> WorkerOutcome:
    return WorkerOutcome(rank, exit_code=0, end=End(t=0.0, rank=rank, status="done"), **more)


def failure(*outcomes: WorkerOutcome, reason: str = "worker", **more: Any) -> Failure:
    """A run on a machine with 24 GiB, of which plenty was free, unless told otherwise."""
    known = {"memory_total": 24 * GIB, "memory_available_at_start": 22 * GIB, "memory_low": 18 * GIB, "oom_kills": 0}
    return Failure(reason, outcomes, **{"cell_names": {CELL: "In [12]"}, "run": "/tmp/run", **known, **more})


def name_of(case: Failure, outcome: WorkerOutcome) -> str:
    """Which explainer spoke."""
    return next((one.__name__ for one in EXPLAINERS if one(case, outcome)), "none")


def dump(*lines: str) -> str:
    """A stack as faulthandler writes it, innermost call first."""
    return "\n".join(["Current thread 0x00007f01 (most recent call first):", *(f"  File {line}" for line in lines), ""])


SHORT: dict[str, Any] = {"memory_low": GIB // 5}
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
ABORTED = "A process in the process pool was terminated abruptly while the future was running or pending."
ASSERT = (
    "0 <= device.index() && device.index() < "
    "static_cast<c10::DeviceIndex>(device_ready_queues_.size()) INTERNAL ASSERT FAILED at "
    '"/pytorch/torch/csrc/autograd/engine.cpp":1539, please report a bug to PyTorch. '
)
HBM_USED = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 63.80G of 30.75G hbm. Exceeded hbm capacity by 33.05G."
)
DATALOADER = f"""Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{SITE}/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "{CELL}", line 7, in __getitem__
    raise ValueError("bad item %d" % i)
ValueError: bad item 0
"""
# -- each explainer: a recorded text, and what the person is told -------------------------------------------------

# A line for the explainer, the exception's type and its text; then parts of what the person is told.
RECORDED = r"""
no_mesh AttributeError: 'NoneType' object has no attribute 'get_op_sharding'
  | this run does not use SPMD | line 14 | %%tpu_train --spmd | %tpu_init --spmd 8
no_mesh RuntimeError: Check failed: UseVirtualDevice(): Please enable SPMD via `torch_xla.runtime.use_spmd()`
  | this run does not use SPMD | xla_fsdp_v2
no_mesh ValueError: No mesh is provided and no global mesh is set. Please provide a mesh.
  | this run does not use SPMD
uneven_minibatch RuntimeError: When minibatch is configured, the per-host batch size must be divisible by local
    runtime device count. Per host input data shape = torch.Size([12, 4]), local_runtime_device_count = 8
  | a batch of 12, which cannot be split evenly over 8 devices | line 14 | e.g. 16 | drop_last=True
unknown_axis ValueError: Axis name batch is not defined in the given mesh
  | uses the mesh axis 'batch' | line 14 | "data" and "model" | "fsdp" and "tensor"
unknown_axis ValueError: The mesh must have an axis named 'fsdp'.
  | uses the mesh axis 'fsdp' | set another mesh first | ("fsdp", "tensor")
spmd_process_group AssertionError: XLA backend is not supported with SPMD. Please use a CPU process group instead.
  | backend xla in an SPMD run | one process with all devices | line 14 | -n instead of --spmd
in_use RuntimeError: ABORTED: The TPU is already in use by process with pid 176028. Not attempting to load libtpu.so
    in this process.
  | process 176028 (python other.py) | !kill 176028
in_use RuntimeError: libtpu.so already in use by another process probably owned by another user. Run "$ sudo lsof -w
    /dev/accel0".
  | process 176028 (python other.py)
lock_file RuntimeError: Internal error when accessing libtpu multi-process lockfile. Run "$ sudo rm
    /tmp/libtpu_lockfile".
  | process 176028 | while that process runs
busy RuntimeError: TPU initialization failed: open(/dev/vfio/1): Device or resource busy
  | /dev/vfio/1 | busy | 10 to 30 seconds
forbidden RuntimeError: TPU initialization failed: open(/dev/accel0): Operation not permitted: Operation not
    permitted; Couldn't open device: /dev/accel0
  | /dev/accel0 (Operation not permitted) | ls -l /dev/accel0
forbidden PermissionError: [Errno 13] Permission denied: '/dev/vfio/0'
  | /dev/vfio/0 (Permission denied)
worker_addresses RuntimeError: Invalid --2a886c8_slice_builder_worker_addresses specified. Expected 4 worker
    addresses, got 1.
  | expected 4 worker addresses but got 1 | TPU_PROCESS_ADDRESSES | CLOUD_TPU_TASK_ID | %tpu_init
hbm RuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required
    for HLO temporaries (183.87G) exceeds available HBM (15.75G).
  | 183.87 GiB | 15.75 GiB | 168.12 GiB too little | In [12], line 14
hbm RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 10.51G at the bottom of memory. That was not possible.
    There are 8.97G free, 0B reserved, and 8.97G reservable.
  | 10.51 GiB | 8.97 GiB | 1.54 GiB too little
hbm RuntimeError: Resource exhausted: Attempting to allocate 180.59M. That was not possible. There are 142.58M free.;
    (0x3x0_HBM1)
  | 180.59 MiB | 142.58 MiB are free | 38.01 MiB too little
hbm RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible.
    There are 6.78G free, 0B reserved, and 3.33G reservable.
  | 6.48 GiB | 3.33 GiB are free in one piece | 3.15 GiB too little
metadata RuntimeError: Failed to get 'tpu-env' from instance metadata: Failed to fetch URL (http status: 404) No error
  | TPU_SKIP_MDS_QUERY=1
metadata requests.exceptions.ConnectionError: HTTPConnectionPool(host='metadata.google.internal', port=80): Max
    retries exceeded with url: /computeMetadata/v1/instance/attributes/tpu-env (Caused by NewConnectionError)
  | TPU_SKIP_MDS_QUERY=1
nprocs ValueError: Unsupported nprocs (8). Please use nprocs=1 or None (default).
  | nprocs=8 | -n 8
undefined_symbol ImportError: /usr/lib/python3/dist-packages/_XLAC.cpython-311-x86_64-linux-gnu.so: undefined symbol:
    _ZN5torch4lazy
  | torch 2.9.1, torch_xla 2.9.0 | %pip install torch==2.9.0 torch_xla==2.9.0 | restart
already_initialized RuntimeError: Runtime is already initialized. Do not use the XLA device before calling xmp.spawn.
  | xmp.spawn | restart the kernel
already_initialized ValueError: To train on TPU in Colab or Kaggle Kernel, the `Accelerator` should only be
    initialized inside your training function.
  | notebook_launcher
not_in_main AttributeError: Can't get attribute '_mp_fn' on <module '__main__' (built-in)>
  | `_mp_fn` | %tpu_train _mp_fn | spawn
half_precision ValueError: fp16 mixed precision requires a device in ('xpu', 'cuda', 'npu', 'xla') (not 'xla').
  | --precision bf16 | mixed_precision="bf16"
too_many_recompiles tpu_magics.backends.base.RecompileLimit: recompile 4, where --max-recompiles allows 3
  | stopped at recompile 4: --max-recompiles allows 3 | causes were not recorded | %tpu_panel
split_batches ValueError: To use a `DataLoader` in `split_batches` mode, the batch size (6) needs to be a round
    multiple of the number of processes (4).
  | 6 cannot be split over 4 ranks | a multiple of 4 (4 or 8) | split_batches=False | In [12], line 14
split_batches ValueError: To use `BatchSamplerShard` in `split_batches` mode, the batch size (2) needs to be a round
    multiple of the number of processes (8).
  | 2 cannot be split over 8 ranks | a multiple of 8 (8)
experts_by_histogram NotImplementedError: "histogram_cpu" not implemented for 'Int'
  | torch.histc | experts_implementation="batched_mm" | In [12], line 14
ctc_length RuntimeError: Expected input_lengths to have value at most 49, but got value 50 (while checking arguments
    for ctc_loss_allocate_outputs)
  | a length of 50 for CTC, but 49 frames | line 14 | XLA_USE_BF16 | torch.autocast("xla", dtype=torch.bfloat16)
no_batch_fits RuntimeError: No executable batch size found, reached zero.
  | no batch size that fits | gradient checkpointing
asked_for_input EOFError: EOF when reading a line
  | requested input | answer = input()
asked_for_input IPython.core.error.StdinNotImplementedError: raw_input was called, but this frontend does not support
    input requests.
  | requested input
asked_for_input bdb.BdbQuit:
  | pdb
asked_for_input tpu_magics.launch.streams.NoInput: breakpoint() cannot be used in a worker: the worker is a separate
    process without keyboard input.
  | called breakpoint() at
asked_for_input tpu_magics.launch.streams.NoInput: A debugger's set_trace() cannot be used in a worker: ...
  | cannot read input
system_exit SystemExit: 3
  | sys.exit(3) | In [12], line 14 | return
system_exit SystemExit:
  | sys.exit()
system_exit SystemExit: 2 (x.py: error: unrecognized arguments: --lr)
  | refused: unrecognized arguments: --lr. | In [12], line 14 | parse_args([])
system_exit SystemExit: 2 (x.py: error: unrecognized arguments: -n 2 --steps=3)
  | script was refused: unrecognized arguments: -n 2 --steps=3. | belongs to the script
  | before it: %tpu_train -n 2 --steps=3 script.py.
system_exit SystemExit: 1 (while handling KeyError: 'x')
  | sys.exit(1). | line 14, in training_function), while handling KeyError: 'x', and ends
system_exit SystemExit: no data found
  | Rank 0 ended the program with an error message: no data found | In [12], line 14 | what the message names
system_exit SystemExit: No config (x: error: y) (caused by OSError: z)
  | error message: No config (x: error: y) | caused by OSError: z.
keyboard_interrupt KeyboardInterrupt:
  | Rank 0 raised KeyboardInterrupt | In [12], line 14 | raised it itself | `return`
wrong_device RuntimeError: Expected XLA tensor. Got: torch.FloatTensor
  | on the CPU | torch.FloatTensor | x.to(device) | In [12], line 14
wrong_device RuntimeError: Expected all tensors in the given list to be XLA tensors. Element at index 1 is not an XLA
    tensor. Got: torch.FloatTensor
  | x.to(device)
wrong_device RuntimeError: Check failed: bridge::IsXlaTensor(self) && indices_on_cpu_or_xla: indices should be either
    on cpu or on the same device as the indexed tensor (XLA). When using XLA, the indexed tensor must be an XLA
    tensor.
  | x.to(device)
wrong_device RuntimeError: Input tensor is not an XLA tensor: torch.FloatTensor
  | x.to(device)
wrong_device RuntimeError: The tensor is on device cpu but the model is on XLA
  | x.to(device)
wrong_device RuntimeError: Expected all tensors to be on the same device, but found at least two devices, xla:0 and
    cpu!
  | x.to(device)
wrong_device TypeError: can't convert xla:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host
    memory first.
  | NumPy | .cpu().numpy()
wrong_device RuntimeError: linear(): expected tensor to be on tpu, got cpu
  | on the TPU device | `device = 'tpu'` | expected tensor to be on tpu
wrong_device RuntimeError: Expected all tensors to be on the same device, but found at least two devices, tpu:0 and
    cpu!
  | `device = 'tpu'`
wrong_device torch._dynamo.exc.TorchRuntimeError: Tensor device mismatch
      Explanation: Expected all tensors to be on the same device, but found at least two devices, cpu and tpu:0!
  | `device = 'tpu'`
wrong_device TypeError: can't convert tpu:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host
    memory first.
  | tpu:0 | .cpu().numpy()
in_torch_compile torch._dynamo.exc.TorchRuntimeError: RuntimeError when making fake tensor call Explanation: Dynamo
    failed to run FX node with fake tensors: call_function <built-in function linear>(*(FakeTensor(..., size=(2, 9)),),
    **{}): got RuntimeError('a and b must have same reduction dim, but got [2, 9] X [8, 4].')
  | raised RuntimeError while torch.compile compiled a function: a and b must have same reduction dim, but got [2, 9]
in_torch_compile torch._dynamo.exc.BackendCompilerFailed: backend='tpu' raised: NotImplementedError: TPU backend does
    not support torch.compile(..., dynamic=True, ...).
  | raised NotImplementedError while torch.compile compiled a function: TPU backend does not support torch.compile(
shared_memory RuntimeError: unable to write to file </torch_12_3>: No space left on device (28)
  | /dev/shm | num_workers=0
shared_memory RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that
    dataloader's workers are out of shared memory.
  | /dev/shm
allocation_refused RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate
    memory: you tried to allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)
  | could not allocate 4.0 GiB of host memory | 24.0 GiB total
allocation_refused numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.11 PiB for an array with shape
    (1000000000000000,) and data type float64
  | could not allocate 7.11 PiB of
allocation_refused MemoryError:
  | could not allocate more host memory
allocation_refused OSError: [Errno 12] Cannot allocate memory
  | could not allocate more host memory
child_died torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV
  | process 0 terminated with signal SIGSEGV | 18.0 GiB
child_died RuntimeError: DataLoader worker (pid(s) 10910) exited unexpectedly
  | num_workers=0
disk_full OSError: [Errno 28] No space left on device
  | the disk is full | are free now | TPU_MAGICS_RUNS
disk_full OSError: [Errno 28] No space left on device: '/tmp/model.bin'
  | could not write /tmp/model.bin
disk_full safetensors._safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device
    (os error 28)
  | the disk is full
disk_full RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 576 vs 534
  | the disk is probably full
disk_full OSError: [Errno 122] Disk quota exceeded
  | the disk is full
unpicklable TypeError: cannot pickle '_thread.lock' object
  | '_thread.lock' object | In [12], line 14
unpicklable _pickle.PicklingError: Can't pickle <function <lambda> at 0x7f91c949d620>: attribute lookup <lambda> on
    __main__ failed
  | <function <lambda>>
unpicklable AttributeError: Can't pickle local object 'f.<locals>.A'
  | 'f.<locals>.A'
unpicklable AttributeError: Can't get local object 'f.<locals>.A'
  | 'f.<locals>.A'
in_compiled RuntimeError: A collective inside a torch.compile(backend="openxla") function cannot be rehearsed on
    XLA:CPU: the function becomes one graph
  | inside a torch.compile function | between graphs | Leave out fullgraph
collective RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer
    [127.0.0.1]:63168
  | waited in a collective | In [12], line 14 | same number of times
collective RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms
    for recv operation to complete
  | waited 4 s
collective torch.distributed.DistStoreError: Timed out after 3 seconds waiting for clients. 1/2 clients joined.
  | Not all ranks reached the start
collective torch.distributed.DistNetworkError: The client socket has timed out after 2000ms while trying to connect to
    (127.0.0.1, 29666).
  | waited 2 s | Not all ranks reached the start
waits_forever WaitsForever: It waits for a Queue of a thread that only the notebook has (Thread-3: `consume`, In [4],
    line 2).
  | Rank 0 waits forever at `loss.backward()` | A worker is a fork | Make the object, and start its thread, in the
waits_forever WaitsForever: It waits for a lock, and no thread of its process can end this wait.
  | Rank 0 waits forever | All threads of the process wait, without a time limit | release the lock before the run
never_entered tpu_magics.backends.base.CollectiveTimeout: waited 60 s in all_reduce sum of float32[3] [794c02fc],
    which not every rank entered
  | Rank 0 waited 60 s in all_reduce sum of float32[3] at `loss.backward()` | after the timeout
different tpu_magics.backends.base.CollectiveBroken: the ranks are in different collectives: rank 0: all_reduce sum of
    float32[3] [794c02fc]; rank 1: all_reduce sum of float32[4] [0bf1a5b2]
  | in different collectives | Rank 0: all_reduce sum of float32[3]; rank 1: all_reduce sum of float32[4]
closed_socket OSError: [Errno 88] Socket operation on non-socket
  | Rank 0 used a socket that is closed at `loss.backward()` | multiprocessing.Queue()
closed_socket redis.exceptions.ConnectionError: Error 88 while writing to socket. Socket operation on non-socket.
  | connections of clients | Open it in the training function
exception ValueError: bad shape
  | Rank 0 raised ValueError: bad shape | `loss.backward()` (In [12], line 14, in training_function), inside torch
descriptors OSError: [Errno 24] Too many open files: 'a.txt'
  | Rank 0 ran out of file descriptors at `loss.backward()` | RLIMIT_NOFILE | set_sharing_strategy
"""


def recorded(table: str) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """The cases of such a table."""
    for case in re.split(r"\n(?! )", table.strip()):
        head, *parts = case.split("\n  | ")
        name, kind, text = re.split(r":? ", " ".join(head.split()) + " ", maxsplit=2)
        yield name, kind, text.strip(), tuple(" | ".join(parts).split(" | "))


# What libtpu says of memory that does not suffice (also read by tests/backends/torch_xla/test_trainer.py).
HBM_E1000, HBM_RESERVE, HBM_ALLOCATE, HBM_PIECES = (text for name, _, text, _ in recorded(RECORDED) if name == "hbm")
# Of programs, seeded faults and public threads, in the same form.
KNOWN = list(recorded(Path(__file__).with_name("known_errors.txt").read_text()))
EXCEPTIONS: list[tuple[str, str, str, tuple[str, ...]]] = [
    *recorded(RECORDED),
    *KNOWN,
    (
        "hbm",
        "RuntimeError",
        HBM_USED,
        (
            "63.80 GiB",
            "30.75 GiB",
            "33.05 GiB too little",
            "2.1 times",
            "batch size",
            "bf16",
            "gradient_accumulation_steps",
            "weights alone take 1.50 GiB",
            "TPU v5e",
        ),
    ),
    (
        "another_plugin",
        "RuntimeError",
        "Unexpected option name passed to PJRT_Client_Create: cpu_device_count",
        ("TPU_MAGICS_PJRT_CPU", "--no-tpu-branch"),
    ),
    (
        "no_device_memory",
        "RuntimeError",
        "Bad StatusOr access: UNIMPLEMENTED: GetAllocatorStats is not supported",
        ("xm.get_memory_info", "Only a TPU reports that", "%tpu_preflight"),
    ),
    ("autograd_threads", "RuntimeError", ASSERT, ("backward()", "Restart the kernel")),
    (
        "evaluation_does_not_fit",
        "RuntimeError",
        (
            "Evaluation hit an out-of-memory error. `auto_find_batch_size` only adjusts the training batch size, "
            f"reduce `per_device_eval_batch_size` instead. (caused by RuntimeError: {HBM_USED})"
        ),
        ("during evaluation", "smaller per_device_eval_batch_size"),
    ),
    (
        "in_dataloader",
        "ValueError",
        DATALOADER,
        (
            "DataLoader worker raised ValueError: bad item 0",
            "(In [12], line 7, in __getitem__)",
            'raise ValueError("bad item',
        ),
    ),
    *(
        (
            "in_dataloader",
            "RuntimeError",
            DATALOADER.replace("ValueError", "RuntimeError").replace("bad item 0", said),
            (f"DataLoader worker raised RuntimeError: {said}", "Pad in a collate_fn", "With num_workers=0"),
        )
        for said in (
            "stack expects each tensor to be equal size, but got [1] at entry 0 and [2] at entry 1",
            "Trying to resize storage that is not resizable",
        )
    ),
    (
        "our_own",
        "tpu_magics.errors.TpuMagicsError",
        str(TpuMagicsError("No.", "Because.", "Do.", ["one", "two"])),
        ("Rank 0: No.\nWhy: Because.\nWhat to do: Do.\n\none\ntwo",),
    ),
    (
        "child_died",
        "concurrent.futures.process.BrokenProcessPool",
        ABORTED,
        ("terminated abruptly", "Host memory was not the cause: 18.0 GiB of 24.0 GiB"),
    ),
    (
        "collective",
        "RuntimeError",
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms\n Original exception: ...",
        ("rank 1 did not enter in time", "waited 3 s"),
    ),
    ("exception", "AssertionError", "", ("Rank 0 raised AssertionError\n",)),
    ("exception", "mypackage.errors.Odd", "first\nsecond\nthird", ("Rank 0 raised Odd: first\n", "\nsecond\nthird\n")),
]


def versions_for(name: str) -> dict[str, str]:
    """What is installed where this explainer speaks."""
    framework = next((one.framework for one in (*known.COMPILER, *known.EXPLAINERS) if one.name == name), "")
    return {"torch_tpu": "0.2.0"} if framework else {"torch": "2.9.1", "torch_xla": "2.9.0"}


@pytest.mark.parametrize(
    ("name", "kind", "text", "parts"), EXCEPTIONS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_recorded_exception_is_explained(name: str, kind: str, text: str, parts: tuple[str, ...]) -> None:
    outcome = raising(text, kind)
    more: dict[str, Any] = {
        "versions": versions_for(name),
        "holders": ((176028, "python other.py"),),
        "models_bytes": 3 * GIB // 2,
        "devices": "TPU v5e",
    }
    case = failure(outcome, **more)
    assert name_of(case, outcome) == name
    error = diagnose(case)
    for part in parts:
        assert part in str(error)
    assert type(error) is TrainingFailed
    assert (error.rank, error.run) == (0, "/tmp/run")
    assert error.what and error.todo
    if name != "our_own":
        assert "  In [12], line 14, in training_function: loss.backward()\n  ... 1 frame in torch ..." in str(error)


@pytest.mark.parametrize(
    ("path", "part"), [("In [12]", "A cell ends at its last line."), ("/home/me/x.py", "says that the script failed.")]
)
def test_the_end_of_a_program_is_no_end_of_a_function(path: str, part: str) -> None:
    line = Frame(path, 3, "<module>", "sys.exit(3)")
    error = str(diagnose(failure(raising("3", "SystemExit", frames=(LAUNCHER, line)))))
    assert "Rank 0 called sys.exit(3)." in error and part in error and "End the function" not in error


@pytest.mark.parametrize(("kind", "text"), [("EOFError", ""), ("OSError", "[Errno 9] Bad file descriptor")])
def test_a_closed_pipe_is_known_by_where_it_is_used(kind: str, text: str) -> None:
    inside = Frame("/usr/lib/python3.11/multiprocessing/connection.py", 399, "_recv", "raise EOFError", library=True)
    error = str(diagnose(failure(raising(text, kind, frames=(LAUNCHER, USER, inside)))))
    assert "Rank 0 used a pipe that is closed at `loss.backward()`" in error and "Pipe(duplex=False)" in error
    assert "a pipe that is closed" not in str(diagnose(failure(raising(text, kind))))


def test_a_loader_without_batches_is_known_by_where_accelerate_divides_it() -> None:
    text = "'NoneType' object is not iterable"
    inside = Frame(
        "/site-packages/accelerate/data_loader.py", 216, "_iter_with_no_split", "for idx, batch in", library=True
    )
    error = str(diagnose(failure(raising(text, "TypeError", frames=(LAUNCHER, USER, inside)))))
    assert "a DataLoader without batches cannot be divided by rank at `loss.backward()`" in error
    assert "without batches" not in str(diagnose(failure(raising(text, "TypeError"))))


def test_a_rank_that_waits_for_ones_that_have_returned() -> None:
    text = f"in barrier [794c02fc]: {GLOO}pair.cc:547] Connection closed by peer [127.0.0.1]:4311"
    waits = raising(text, "tpu_magics.backends.base.CollectiveBroken")
    case = failure(waits, finished(1), finished(2))
    assert name_of(case, waits) == "left"
    error = str(diagnose(case))
    assert "Rank 0 waited in barrier at `loss.backward()`" in error
    assert "dist.barrier() of torch_xla 2.9 does not wait" in error
    assert "that ranks 1 and 2 never entered: they had already returned." in error


def test_a_flag_that_xla_does_not_know() -> None:
    """XLA's words (torch_xla 2.9), which end the process with an exit code."""
    line = "F0000 00:00:1 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_nonsense=3"
    error = diagnose(failure(WorkerOutcome(0, exit_code=1, log_tail=f"{line}\nPerhaps you meant to specify")))
    assert "Unknown here: --xla_nonsense=3." in error.why and "XLA_FLAGS" in error.todo


def test_few_errors_have_no_answer() -> None:
    """Below one in ten of the errors that we have: "Fix it" is all that their explanation says."""
    named = [name for name, *_ in EXCEPTIONS]
    assert named.count("exception") / len(named) < 0.05
    told = [(raising(text, kind), versions_for(name)) for name, kind, text, _ in EXCEPTIONS]
    plain = [explain(failure(one, versions=versions), one).todo for one, versions in told]
    assert sum(todo.startswith("Fix it") for todo in plain) / len(plain) < 0.1


def test_every_explainer_of_exceptions_has_a_recorded_text() -> None:
    by_signal = {"died_of_memory", "crashed", "killed", "silent_exit", "unknown_exit", "late_death"}
    by_signal.add("unknown_flags")
    by_the_others = {"left", "child_died_of_memory", "host_trained", "unbatched_loader"}  # test_host_training.py; above
    # by the process's limits and exit codes (test_endings.py)
    by_signal |= {"allocation_limited", "machinery", "unrecorded"}
    assert {name for name, *_ in EXCEPTIONS} | by_signal | by_the_others == {one.__name__ for one in EXPLAINERS}


# texts that look alike and must be left to the plain exception
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("RuntimeError", "The TPU is already in use by process with a name"),
        ("RuntimeError", "Internal error when accessing the lockfile"),
        ("OSError", "[Errno 16] Device or resource busy: '/mnt/data'"),
        ("PermissionError", "[Errno 1] Operation not permitted: '/root/data'"),
        ("PermissionError", "[Errno 13] Permission denied: '/dev/accel/accel0'"),
        ("ValueError", "Expected 4 addresses, got 1"),
        ("RuntimeError", "Ran out of memory in memory space vmem. Used 33.00M of 16.00M vmem."),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB."),
        ("RuntimeError", "Failed to get 'project' from instance metadata"),
        ("ValueError", "Unsupported n (8)"),
        ("ImportError", "/home/me/mylib.so: undefined symbol: nope"),
        ("RuntimeError", "The logger is already initialized"),
        ("AttributeError", "Can't get attribute 'Net' on <module 'mypackage' from '/home/me/mypackage.py'>"),
        ("RuntimeError", 'INTERNAL ASSERT FAILED at "/pytorch/torch/csrc/jit/ir.cpp":10'),
        ("ValueError", "fp16 is slow"),
        ("EOFError", "Ran out of input"),
        (
            "RuntimeError",
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        ),
        ("RuntimeError", "Expected tensor for argument #1 'indices' to have scalar type Long"),
        ("ValueError", "There is no space left in the truck"),
        ("ValueError", "I cannot pickle cucumbers"),
        ("ValueError", "Default process group has not been initialized, please make sure to call init_process_group."),
        ("KeyError", "'Rendezvous with Rama'"),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        (
            "requests.exceptions.ConnectionError",
            "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
        ),
        ("RuntimeError", "no vector for the word gloomy"),
        ("RuntimeError", "the process was terminated"),
        ("ValueError", "caught ValueError in the DataLoader"),
    ],
)
def test_a_look_alike_is_not_explained_away(kind: str, text: str) -> None:
    outcome = raising(text, kind)
    assert name_of(failure(outcome), outcome) in {"exception", *(name for name, *_ in KNOWN)}
    assert text in diagnose(failure(outcome)).what


def test_output_of_a_worker_that_raised_is_not_taken_for_the_cause() -> None:
    outcome = raising(
        "bad shape", "ValueError", log_tail=f"{ABORTED}\n{HBM_USED}\nopen(/dev/accel0): Operation not permitted\n"
    )
    assert name_of(failure(outcome), outcome) == "exception"


def test_output_counts_where_the_exception_says_only_that_the_device_did_not_start() -> None:
    said = "The TPU is already in use by process with pid 12. Not attempting to load libtpu.so in this process.\n"
    outcome = raising("Bad StatusOr access: UNKNOWN: TPU initialization failed", log_tail=said)
    assert "already in use by process 12." in diagnose(failure(outcome)).what


def test_no_holder_is_said_to_be_unknown() -> None:
    outcome = raising("libtpu.so already in used by another process.")
    assert "unknown: it may belong to another user" in diagnose(failure(outcome)).what
    outcome = raising("Internal error when accessing libtpu multi-process lockfile.")
    assert "rm /tmp/libtpu_lockfile" in diagnose(failure(outcome)).todo
    outcome = raising("open(/dev/vfio/1): Device or resource busy")
    assert "Wait 30 seconds" in diagnose(failure(outcome)).todo


def test_a_rank_of_the_same_run_is_no_foreign_holder() -> None:
    outcomes = (
        raising("ABORTED: The TPU is already in use by process with pid 101. Not attempting"),
        finished(1, pid=101),
    )
    error = diagnose(failure(*outcomes, holders=((101, "python"),)))
    assert error.what == "Rank 0 could not start: rank 1 of this run already uses the TPU."
    assert "kill" not in error.todo
    busy = (raising("open(/dev/vfio/1): Device or resource busy"), finished(1, pid=101))
    assert "No process was found" in diagnose(failure(*busy, holders=((101, "python"),))).why


def test_a_result_that_cannot_be_pickled() -> None:
    outcome = raising("cannot pickle 'generator' object", "TypeError", frames=(LAUNCHER,))
    for case in (failure(outcome), failure(outcome, reason="collect")):
        error = diagnose(case)
        assert error.what == "Rank 0 finished, but its return value cannot be pickled: 'generator' object."
        assert "Return numbers" in error.todo


@pytest.mark.parametrize(
    "thing", [lambda: 1, threading.Lock(), (i for i in ()), open(os.devnull)], ids=lambda one: type(one).__name__
)
def test_what_this_python_says_about_pickles_is_known(thing: object) -> None:
    with pytest.raises(Exception) as caught:
        pickle.dumps(thing)
    outcome = raising(*reversed(stacks.describe(caught.value)), frames=())
    assert name_of(failure(outcome), outcome) == "unpicklable"


def test_what_this_kernel_says_about_full_disks_is_known() -> None:
    with pytest.raises(OSError) as caught, open("/dev/full", "w") as file:
        file.write("x")
        file.flush()
    outcome = raising(*reversed(stacks.describe(caught.value)))
    assert name_of(failure(outcome), outcome) == "disk_full"


class FakeDisk:
    """What `os.statvfs` says of full disks."""

    f_bavail = f_bfree = f_blocks = 10
    f_frsize = 4096


@pytest.mark.parametrize(
    "text", ["I/O error: No space left on device (os error 28)", "inline_container.cc:664] . unexpected pos 576"]
)
def test_a_full_disk_is_that_of_the_path_that_was_written_to(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries leave it out; the functions that were called have it, among paths on other disks."""
    full, roomy = tmp_path / "full", tmp_path / "roomy"
    full.mkdir(), roomy.mkdir()
    statvfs = os.statvfs

    def fake_statvfs(path: Any) -> Any:
        return FakeDisk() if Path(path) == full else statvfs(path)

    def writes(filename: str, config: Path) -> None:
        raise RuntimeError(text)

    def trains(output_dir: str) -> None:
        data = str(roomy / "data.bin")
        writes(f"{output_dir}/model.safetensors", Path(data))

    monkeypatch.setattr(os, "statvfs", fake_statvfs)
    with pytest.raises(RuntimeError) as caught:
        trains(str(full))
    outcome = raising(*reversed(stacks.describe(caught.value)))
    error = diagnose(failure(outcome))
    assert f"could not write {full}/model.safetensors" in error.what
    assert f"are free now on the disk of {full}." in error.why


# -- host memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_death_from_host_memory_has_the_numbers(number: int) -> None:
    outcomes = [killed(number, rank, peak_rss=9 * GIB, peak_pss=(5 + rank) * GIB) for rank in range(4)]
    built = ("In [4], line 3: model = Net()",)
    error = diagnose(failure(*outcomes, **SHORT, oom_kills=2, models_built_in_function=built))
    assert error.rank == 0
    sure = number == signal.SIGKILL
    assert signal.Signals(number).name in error.what
    assert error.what.endswith(": out of host memory." if sure else ", probably out of host memory.")
    assert "out-of-memory killer ran 2 times" in error.why
    assert "rank 0 5.0 GiB, rank 1 6.0 GiB, rank 2 7.0 GiB, rank 3 8.0 GiB, total 26.0 GiB" in error.why
    assert "24.0 GiB total, 22.0 GiB free at the start, 205 MiB free at the lowest point" in error.why
    assert "Each of the 4 workers builds its own model: In [4], line 3: model = Net()." in error.why
    assert error.todo.startswith(
        "Move the line `model = Net()` (In [4], line 3) out of the function, or pass the model"
    )
    assert "as an argument: %%tpu_train model." in error.todo


def test_many_workers_are_shown_as_a_range() -> None:
    outcomes = [killed(signal.SIGKILL, rank, peak_rss=(2 + rank % 2) * GIB) for rank in range(8)]
    error = diagnose(failure(*outcomes, oom_kills=1, models_bytes=GIB))
    assert "(RSS, shared pages counted for each rank): ranks 0-7 2.0 GiB to 3.0 GiB each, total 20.0 GiB" in error.why
    assert "ran once" in error.why
    assert "models take 1.0 GiB, shared by all workers" in error.why
    assert "fewer workers (-n)" in error.todo


@pytest.mark.parametrize(
    ("line", "todo"),
    [
        ("In [4], line 3: net: Net = Net()", "`net: Net = Net()` (In [4], line 3) out of the function"),
        ("In [4], line 3: net: Net = Net()", "as an argument: %%tpu_train net."),
        ("model = Net()", "the line `model = Net()` out of"),
        ("In [4], line 3: return Net()", "%%tpu_train model."),
    ],
)  # fmt: skip
def test_the_line_to_move_is_named(line: str, todo: str) -> None:
    assert todo in diagnose(failure(killed(signal.SIGKILL), **SHORT, models_built_in_function=(line,))).todo


def test_one_worker_is_not_told_to_use_fewer() -> None:
    error = diagnose(failure(killed(signal.SIGKILL, peak_rss=GIB), **SHORT))
    assert "-n" not in error.todo
    assert "rank 0 1.0 GiB." in error.why


def test_nothing_measured_is_said_so() -> None:
    error = diagnose(
        failure(killed(signal.SIGSEGV), memory_total=0, memory_low=0, memory_available_at_start=0, oom_kills=None)
    )
    assert "unknown whether host memory was low (free memory was not measured)" in error.why
    error = diagnose(failure(killed(signal.SIGKILL), memory_low=0, oom_kills=1))
    assert "The workers' memory was not measured. Free memory was not measured." in error.why


@pytest.mark.parametrize(
    ("total", "low", "short"),
    [(24, 0.9, True), (24, 1.5, False), (334, 3.9, True), (334, 12, False), (1, 0.1, True), (1, 0.3, False)],
)
def test_what_counts_as_short_depends_on_the_machine(total: float, low: float, short: bool) -> None:
    outcome = killed(signal.SIGKILL)
    case = failure(outcome, memory_total=int(total * GIB), memory_low=int(low * GIB))
    assert name_of(case, outcome) == ("died_of_memory" if short else "killed")


def test_native_code_that_was_refused_memory() -> None:
    outcome = killed(
        signal.SIGABRT,
        log_tail="terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
    )
    assert diagnose(failure(outcome)).what == "Rank 0 crashed (SIGABRT): out of host memory."


def test_the_kernels_counter_alone_does_not_explain_a_crash() -> None:
    outcome = killed(signal.SIGSEGV)
    assert name_of(failure(outcome, oom_kills=1), outcome) == "crashed"
    assert name_of(failure(outcome, oom_kills=1, memory_low=0), outcome) == "died_of_memory"


@pytest.mark.parametrize(
    "text",
    [ABORTED, "process 0 terminated with signal SIGSEGV", "DataLoader worker (pid(s) 10910) exited unexpectedly"],
)
def test_a_child_that_died_while_memory_was_short(text: str) -> None:
    error = diagnose(failure(raising(text), **SHORT))
    assert "A process started by rank 0 died" in error.what and "host memory" in error.what
    assert "205 MiB free" in error.why


def test_a_loaders_worker_that_died_as_it_sent_a_batch() -> None:
    """The loader finds a closed connection; elsewhere that is a server's."""
    loader = Frame("/usr/lib/python3/site-packages/torch/utils/data/dataloader.py", 1251, "_try_get_data", "", True)
    reset = "[Errno 104] Connection reset by peer"
    outcome = raising(reset, "ConnectionResetError", frames=(LAUNCHER, USER, loader))
    error = diagnose(failure(outcome))
    assert error.what.startswith("A process started by rank 0 died (a DataLoader worker) at ")
    assert "num_workers=0" in error.todo
    exited = f"DataLoader worker (pid(s) 7000) exited unexpectedly (caused by ConnectionResetError: {reset})"
    assert "died (DataLoader worker (pid(s) 7000) exited unexpectedly)" in diagnose(failure(raising(exited))).what
    assert "could not reach a server" in diagnose(failure(raising(reset, "ConnectionResetError"))).why


def test_an_exception_before_the_signal_is_what_happened() -> None:
    outcome = WorkerOutcome(0, signal=signal.SIGSEGV, end=ended("ValueError", "bad shape"))
    assert diagnose(failure(outcome, **SHORT)).what == "Rank 0 raised ValueError: bad shape"


# -- other signals and exits --------------------------------------------------------------------------------------


def test_a_crash_with_memory_left_is_no_memory_problem() -> None:
    stack = dump(f'"{SITE}/torch/x.py", line 2 in op', f'"{CELL}", line 5 in f')
    linecache.cache[CELL] = (0, None, ["\n"] * 4 + ["torch.ops.bad(x)\n"], CELL)
    error = diagnose(failure(killed(signal.SIGSEGV, 1, stack=stack), versions={"torch": "2.9.0"}))
    assert error.what == "Rank 1 crashed (SIGSEGV): a crash in native code."
    assert "Host memory was not the cause: 18.0 GiB of 24.0 GiB were free at the lowest point measured." in error.why
    assert "It happened at `torch.ops.bad(x)` (In [12], line 5, in f), in a call into torch." in error.why
    assert "(torch 2.9.0)" in error.todo and "%tpu_logs -r 1" in error.todo
    assert error.details[:3] == (
        "Your code in rank 1 (outermost call first):",
        "  In [12], line 5, in f: torch.ops.bad(x)",
        "  ... 1 frame in torch ...",
    )


def test_last_words_of_native_code_are_shown() -> None:
    log = "\x1b[31mstep 3\x1b[0m\nF1121 05:51:57 12 x.cc:5] Check failed: ok\nAborted\n"
    error = diagnose(failure(killed(signal.SIGABRT, log_tail=log)))
    assert "Last message: F1121 05:51:57 12 x.cc:5] Check failed: ok" in error.why
    assert "\x1b" not in str(error)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2])
def test_a_kill_with_memory_left_came_from_outside(number: int) -> None:
    error = diagnose(failure(killed(number)))
    how = "killed" if number == signal.SIGKILL else "stopped"
    assert error.what == f"Rank 0 was {how} ({signal.Signals(number).name}), not by the launcher."
    assert "memory was not the cause" in error.why
    assert "what sent the signal" in error.todo


def test_a_signal_without_a_name() -> None:
    assert "signal 200" in diagnose(failure(killed(200))).what


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("total", "name"), [(64 * 2**20, "shared_memory"), (12 * GIB, "crashed")])
def test_a_bus_error_depends_on_the_size_of_shared_memory(
    total: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(total, 0, total))
    outcome = killed(signal.SIGBUS)
    assert name_of(failure(outcome), outcome) == name
    assert ("Its size here is 64 MiB" in diagnose(failure(outcome)).why) == (name == "shared_memory")


def test_what_pytorch_says_about_shared_memory_in_the_output() -> None:
    said = (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
    )
    outcome = raising("DataLoader worker (pid(s) 5489) exited unexpectedly", log_tail=said)
    assert name_of(failure(outcome), outcome) == "shared_memory"


@pytest.mark.parametrize(("code", "text"), [(3, "exit code 3"), (0, "exit code 0")])
def test_an_exit_without_a_word(code: int, text: str) -> None:
    error = diagnose(failure(WorkerOutcome(2, exit_code=code, log_tail="step 1\nbye\n\n")))
    assert error.what == f"Rank 2 exited before it finished ({text})."
    assert "os._exit()" in error.why and "Its last line of output: bye" in error.why


def test_an_exit_status_that_the_notebook_took() -> None:
    error = diagnose(failure(WorkerOutcome(2, log_tail="bye\n", stack="Fatal Python error: Aborted\n"), oom_kills=1))
    assert error.what == "Rank 2 ended before it finished, and its exit status is unknown."
    for words in ("SIGCHLD", "Fatal Python error: Aborted", "killer acted", "output: bye", "os._exit()"):
        assert words in error.why, words
    assert "signal.SIG_DFL" in error.todo
    error = diagnose(failure(raising("boom"), WorkerOutcome(1)))
    assert "1 (exit status unknown)" in str(error.details), error.details


def test_death_after_the_work_was_done() -> None:
    outcome = WorkerOutcome(0, signal=signal.SIGSEGV, end=End(t=0.0, rank=0, status="done"))
    assert diagnose(failure(outcome)).what == "Rank 0 finished the function and then failed (SIGSEGV)."
    outcome = WorkerOutcome(0, exit_code=70, end=End(t=0.0, rank=0, status="limit"))
    assert "exit code 70" in diagnose(failure(outcome)).what


CRASHING = """import ctypes

def training_function():
    ctypes.string_at(0)
"""


@pytest.mark.process
def test_a_true_crash(tmp_path: Path) -> None:
    status, stack = dump_of(run_cell(CRASHING)["training_function"], tmp_path / "stack", in_thread=True)
    error = diagnose(failure(killed(os.WTERMSIG(status), stack=stack)))
    assert error.what == "Rank 0 crashed (SIGSEGV): a crash in native code."
    assert (
        "It happened at `ctypes.string_at(0)` (In [12], line 4, in training_function), in a call into Python."
        in error.why
    )
    assert error.details[1:] == (
        "  In [12], line 4, in training_function: ctypes.string_at(0)",
        "  ... 1 frame in Python ...",
    )


# -- who is to blame ----------------------------------------------------------------------------------------------

PEER = GLOO + "pair.cc:547] Connection closed by peer [127.0.0.1]:63168"


def test_the_killed_rank_is_named_and_not_the_one_whose_collective_broke() -> None:
    outcomes = (
        raising(PEER, rank=0, ended=1.0),
        killed(signal.SIGKILL, 1, ended=1.2),
        raising(PEER, rank=2, ended=1.1),
    )
    error = diagnose(failure(*outcomes, oom_kills=1))
    assert error.rank == 1
    assert error.details[-1] == "Also failed: ranks 0 and 2 (Connection closed by peer): a consequence"


SEGV, VALUE = killed(signal.SIGSEGV, 3, ended=9.0), raising("bad", "ValueError", 1, ended=5.0)


@pytest.mark.parametrize(
    ("outcomes", "rank"),
    [
        ((VALUE, SEGV), 3),
        ((raising(PEER, rank=0, ended=1.0), VALUE), 1),
        ((VALUE, raising("bad", "KeyError", 2, ended=4.0)), 2),
        ((raising("bad", "ValueError", 2, ended=5.0), VALUE), 1),
        ((killed(signal.SIGKILL, 0, ended=8.0), SEGV), 0),
        ((killed(signal.SIGKILL, 0, ended=1.0, stopped_by_us=True), VALUE), 1),
        ((finished(0, ended=1.0), VALUE), 1),
        ((raising(PEER, rank=2, ended=2.0), raising(PEER, rank=1, ended=1.0)), 1),
        ((WorkerOutcome(0, signal=11, ended=1.0, end=ended("RuntimeError", PEER)), VALUE), 1),
        ((killed(signal.SIGABRT, 0, ended=1.0, log_tail=f"terminate called\n  what(): {PEER}\n"), VALUE), 1),
        ((WorkerOutcome(0, exit_code=3, ended=1.0), VALUE), 0),
        ((raising("bad", "SystemExit", 0, ended=6.0), VALUE), 1),
    ],
)
def test_signals_then_exceptions_then_collectives_the_earliest_first(
    outcomes: tuple[WorkerOutcome, ...], rank: int
) -> None:
    for order in (outcomes, tuple(reversed(outcomes))):
        found = blame(failure(*order))
        assert found is not None and found.rank == rank


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("RuntimeError", GLOO + "pair.cc:538] Read error [127.0.0.1]:64746: Connection reset by peer"),
        ("RuntimeError", GLOO + "unbound_buffer.cc:129] Timed out waiting 4000ms for send operation to complete"),
        ("RuntimeError", "Rank 2 successfully reached monitoredBarrier, but received errors"),
        ("RuntimeError", "DEADLINE_EXCEEDED: Barrier timed out. Id: x"),
        ("torch.distributed.DistStoreError", "Socket Timeout"),
        ("torch.distributed.DistBackendError", "the process group was aborted"),
        ("RuntimeError", "Rendezvous failed: all ranks have to join"),
    ],
)
def test_errors_of_collectives_are_consequences(kind: str, text: str) -> None:
    error = diagnose(failure(raising(text, kind, 0, ended=1.0), VALUE))
    assert error.rank == 1
    assert error.details[-1].endswith("a consequence")


def test_others_with_reasons_of_their_own_are_no_consequences() -> None:
    others = (
        raising("bad", "ValueError", 0, ended=6.0),
        raising("worse", "KeyError", 2, ended=7.0),
        WorkerOutcome(3, exit_code=4, ended=9.0),
    )
    error = diagnose(failure(VALUE, *others))
    assert (
        error.details[-1] == "Also failed: rank 0 (the same exception); rank 2 (KeyError: worse); rank 3 (exit code 4)"
    )
    assert diagnose(failure(SEGV, VALUE)).details[-1] == "Also failed: rank 1 (ValueError: bad)"


def test_nobody_to_blame() -> None:
    error = diagnose(failure(killed(signal.SIGKILL, stopped_by_us=True)))
    assert (error.rank, error.what) == (None, "The run ended before it finished.")
    error = diagnose(failure(finished(), reason="collect"))
    assert error.what == "The results of the run could not be loaded."
    assert blame(failure(finished(0), finished(1))) is None


def test_ranks_that_left_early_are_named() -> None:
    error = diagnose(failure(raising(PEER, rank=0), finished(1)))
    assert "rank 1 never entered: it had already returned" in error.what
    assert "different numbers of steps" in error.why and "drop_last=True" in error.todo
    error = diagnose(failure(raising(PEER, rank=0), finished(1), finished(2), finished(3)))
    assert "ranks 1-3 never entered: they had already returned" in error.what


def test_every_outcome_has_an_explanation() -> None:
    assert explain(failure(), finished()).what


# -- the whole message --------------------------------------------------------------------------------------------


def test_the_order_of_the_message() -> None:
    cell = Frame("In [3]", 2, "<module>", "train()")
    stack = (LAUNCHER, TORCH, cell, TORCH, TORCH, USER, TORCH)
    error = diagnose(
        failure(raising("bad\nmore", "ValueError", 2, frames=stack, ended=1.0), raising(PEER, rank=0, ended=0.5))
    )
    assert str(error).splitlines() == [
        "Rank 2 raised ValueError: bad",
        "Why: It was raised at `loss.backward()` (In [12], line 14, in training_function), inside torch.",
        "What to do: Fix it and run the cell again. The notebook's models are unchanged.",
        "",
        "more",
        "",
        "Your code in rank 2 (outermost call first):",
        "  In [3], line 2, in <module>: train()",
        "  ... 2 frames in torch ...",
        "  In [12], line 14, in training_function: loss.backward()",
        "  ... 1 frame in torch ...",
        "",
        "Also failed: rank 0 (Connection closed by peer): a consequence",
    ]


def test_a_true_exception_through_torch() -> None:
    pytest.importorskip("torch")
    code = "import torch\ndef training_function():\n    torch.nn.Linear(4, 2)(torch.ones(3, 5))\ntraining_function()\n"
    raised = raised_by(code)
    kind, text = stacks.describe(raised)
    outcome = raising(text, kind, frames=stacks.from_exception(raised, CELLS))
    error = diagnose(failure(outcome))
    assert error.what.startswith("Rank 0 raised RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x5 and 4x2)")
    assert (
        "`torch.nn.Linear(4, 2)(torch.ones(3, 5))` (In [12], line 3, in training_function), inside torch." in error.why
    )
    assert "frames in torch ..." in error.details[-1]


def test_long_texts_are_cut() -> None:
    error = diagnose(failure(raising("x" * 5000 + "\n" + "\n".join(f"line {n}" for n in range(100)), "ValueError")))
    assert len(error.what) < 400
    assert "... 80 more lines ..." in error.details
    assert "line 19" in error.details and "line 20" not in error.details


def test_the_stack_of_native_functions_is_left_out() -> None:
    """As torch_xla 2.9.0 adds it to an error of XLA."""
    text = (
        "torch_xla/csrc/data_ops.cpp:185 : Check failed: a <= b (2 vs. 1) \n*** Begin stack trace ***\n"
        "\ttsl::CurrentStackTrace()\n\ttorch_xla::BuildExpand(xla::XlaOp)\n*** End stack trace ***\nmore of it"
    )
    error = diagnose(failure(raising(text)))
    assert "CurrentStackTrace" not in str(error) and "more of it" in str(error)


def test_a_worker_that_raised_without_a_stack() -> None:
    error = diagnose(failure(raising("bad", "ValueError", frames=())))
    assert (error.why, error.details) == ("", ())


# -- runs that were stopped ---------------------------------------------------------------------------------------


def stopped(rank: int, line: int, function: str = "", **more: Any) -> WorkerOutcome:
    below = [f'"{SITE}/torch_xla/core/xla_model.py", line 90 in {function}'] if function else []
    stack = dump(*below, f'"{CELL}", line {line} in training_function', f'"{OURS}", line 9 in _train')
    return killed(signal.SIGKILL, rank, stack=stack, stopped_by_us=True, **more)


@pytest.fixture
def cell() -> None:
    lines = ["\n"] * 20
    lines[4], lines[7] = "xm.rendezvous('end')\n", "while True: pass\n"
    linecache.cache[CELL] = (0, None, lines, CELL)


@pytest.mark.usefixtures("cell")
class TestStopped:
    def test_the_rank_outside_the_collective_hangs(self) -> None:
        outcomes = (stopped(0, 5, "rendezvous"), stopped(1, 8), stopped(2, 5, "rendezvous"))
        error = diagnose(failure(*outcomes, reason="timeout", timeout=600.0))
        assert error.what == "The run was stopped after 600 s (--timeout): rank 1 hangs while the others wait."
        assert error.rank == 1
        assert "Rank 1: at `while True: pass` (In [12], line 8, in training_function)." in error.why
        assert (
            "Ranks 0 and 2: at `xm.rendezvous('end')` (In [12], line 5, in training_function), waiting in rendezvous."
            in error.why
        )
        assert error.details == (
            "Your code in rank 1 (outermost call first):",
            "  In [12], line 8, in training_function: while True: pass",
        )
        assert "same collectives the same number of times" in error.todo

    def test_of_two_ranks_the_one_that_does_not_wait_hangs(self) -> None:
        assert diagnose(failure(stopped(0, 8), stopped(1, 5, "all_reduce"), reason="timeout", timeout=1.5)).rank == 0

    def test_ranks_that_wait_at_different_lines(self) -> None:
        outcomes = [stopped(rank, 5, "all_reduce") for rank in range(3)]
        error = diagnose(failure(*outcomes, stopped(3, 8, "all_gather"), reason="timeout", timeout=1.5))
        assert error.rank == 3 and "after 1.5 s" in error.what

    def test_a_minority_elsewhere_is_named_even_where_no_collective_is_known(self) -> None:
        error = diagnose(failure(stopped(0, 5), stopped(1, 5), stopped(2, 8), reason="timeout", timeout=9.0))
        assert error.rank == 2

    @pytest.mark.parametrize(
        "outcomes",
        [
            (stopped(0, 8),),
            (stopped(0, 5), stopped(1, 8)),
            (stopped(0, 5), stopped(1, 5), stopped(2, 5)),
            (stopped(0, 5, "sync"), stopped(1, 5, "sync")),
        ],
    )
    def test_nobody_is_blamed_without_evidence(self, outcomes: tuple[WorkerOutcome, ...]) -> None:
        error = diagnose(failure(*outcomes, reason="timeout", timeout=60.0))
        assert (error.rank, error.what) == (None, "The run was stopped after 60 s (--timeout).")
        assert "--timeout" in error.todo and "In [12], line" in error.why
        assert bool(error.details) == (len(outcomes) == 1)

    def test_ranks_that_had_returned_and_ranks_without_a_stack(self) -> None:
        error = diagnose(
            failure(
                stopped(0, 5, "all_reduce"),
                finished(1),
                killed(9, 2, stopped_by_us=True),
                reason="timeout",
                timeout=5.0,
            )
        )
        assert "Rank 1: had already returned." in error.why
        assert "Rank 2: source line unknown" in error.why

    def test_a_rank_that_waits_for_what_its_function_started(self) -> None:
        after = "The function has returned. Waiting for the threads that it started: saver"
        waiting = killed(9, stopped_by_us=True, after=after)
        error = diagnose(failure(waiting, reason="timeout", timeout=5.0))
        assert f"Rank 0: t{after[1:]}. The notebook" in error.why
        assert "End the threads and processes" in error.todo
        finished_step = WorkerOutcome(0, end=ended("", status="stopped"), after=after)
        assert after[1:] not in diagnose(failure(finished_step, reason="timeout", timeout=5.0)).why

    def test_a_rank_whose_device_is_not_done(self) -> None:
        waiting = killed(9, stopped_by_us=True, after=DEVICE_RUNS)
        error = diagnose(failure(waiting, reason="timeout", timeout=5.0))
        assert f"Rank 0: t{DEVICE_RUNS[1:]}. The notebook" in error.why
        assert "--timeout: the device takes longer" in error.todo

    def test_an_interrupt_blames_nobody(self) -> None:
        error = diagnose(failure(stopped(0, 5, "all_reduce"), stopped(1, 8), reason="interrupt"))
        assert isinstance(error, TrainingInterrupted) and isinstance(error, KeyboardInterrupt)
        assert (error.rank, error.run, error.what) == (None, "/tmp/run", "The run was interrupted.")
        assert "Rank 0: at `xm.rendezvous('end')`" in error.why and "Rank 1: at `while True: pass`" in error.why
        assert "models are unchanged" in error.why and "--keep-partial" not in error.todo
        could = failure(stopped(0, 5, "all_reduce"), reason="interrupt", can_keep=True)
        assert diagnose(could).todo.endswith("With --keep-partial an interrupted run keeps its training so far.")


def test_a_kernel_that_ended() -> None:
    error = diagnose(failure(killed(signal.SIGKILL, stopped_by_us=True), reason="kernel"))
    assert "kernel ended" in error.what and error.rank is None


def test_workers_that_claim_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("TPU_", "CLOUD_TPU_", "PJRT_LOCAL"))]:
        monkeypatch.delenv(name)
    outcomes = (raising("bad", "ValueError", rank=1), finished(1), finished(0))
    error = diagnose(failure(*outcomes, reason="ranks", claims={0: 1, 1: 3}))
    assert error.rank is None and error.details == ("A worker also raised ValueError: bad",)
    assert error.what == "The workers do not agree on their ranks: of 4 that began, 3 have rank 1."
    assert error.why == (
        "The runtime must give each of the 3 workers a rank of its own. Without it, the workers are not one run: their "
        "collectives do not reach each other. The probable cause: the runtime took each worker for a run of its own, "
        "or for a part of a larger one. The notebook's models are unchanged."
    )
    monkeypatch.setenv("CLOUD_TPU_TASK_ID", "0")
    error = diagnose(failure(*outcomes, reason="ranks", claims={0: 1, 1: 3}))
    assert "variables that describe another set of processes: CLOUD_TPU_TASK_ID=0." in error.why
    assert error.todo.startswith("Unset CLOUD_TPU_TASK_ID (")
