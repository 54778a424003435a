"""The options of the magics, each declared once, and their parser; help and docstrings are made from here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from functools import partial
from typing import Any, NoReturn

from tpu_magics.backends.frameworks import AUTO, CHOICES
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.options import Options, given_options
from tpu_magics.magics.parser import (
    Definition,
    Expression,
    Function,
    MagicParser,
    RuleCodes,
    RunName,
    Script,
    Size,
    Targets,
    count,
    counts,
    positive,
    seconds,
)
from tpu_magics.preflight.options import PreflightOptions

__all__ = [
    "PARSERS",
    "MagicParser",
    "check_parser",
    "doc",
    "doctor_parser",
    "init_parser",
    "logs_parser",
    "pad_parser",
    "panel_parser",
    "pod_parser",
    "preflight_parser",
    "runs_parser",
    "stop_parser",
    "train_parser",
]


def add_shared(parser: MagicParser) -> None:
    """What %tpu_init sets for the session and %%tpu_train for one run."""
    for name in ("processes", "collective_timeout", "precision"):
        add_option(parser, name)


def add_option(parser: argparse.ArgumentParser, name: str, cls: type = Options, required: bool = False) -> None:
    """An option as its class declares it (launch/options.py, preflight/options.py)."""
    one, declared = next(each for each in given_options(cls) if each[0].name == name)
    more: dict[str, Any] = {"help": declared.help, "dest": name}
    if declared.kind == "flag" or isinstance(one.default, bool):
        more["action"] = "store_false" if one.default is True else "store_true"
    elif declared.kind == "words":
        more |= {"nargs": "+", "action": "extend", "default": [], "metavar": declared.metavar}
    else:
        more |= {
            "default": None if one.default is MISSING else one.default,
            "metavar": declared.metavar,
            "required": required,
        }
        more |= {"choices": declared.choices} if declared.choices else {}
        more |= {"type": _KINDS[declared.kind]} if declared.kind in _KINDS else {}
    parser.add_argument(*declared.flags, **more)


_KINDS: Mapping[str, Callable[[str], Any]] = {"count": count, "seconds": seconds, "targets": Targets, "size": Size}


def _refuse_tpu(tpu: str) -> NoReturn:
    """Raise TpuMagicsError for --tpu, which old notebooks have."""
    raise TpuMagicsError(
        f"%tpu_init no longer has --tpu {tpu}: a TPU cannot be reached by name or address.",
        "Those were TPU nodes, which Google discontinued in April 2025.",
        "Run the notebook on the TPU VM itself, with %tpu_init and without --tpu: it finds the TPU of its own host.",
    )


def init_parser() -> MagicParser:
    """%tpu_init"""
    parser = MagicParser(
        "%tpu_init",
        "Detect the environment, the TPU and the versions, and set the session's defaults.\n"
        "The PyTorch/XLA runtime never starts in the notebook's process. TensorFlow trains in it: its strategy is\n"
        "created here, and is the notebook's `strategy`.",
    )
    parser.add_argument(
        "--framework",
        choices=CHOICES,
        default=AUTO,
        help="the framework of the cells (default: auto, the one that the notebook has imported)",
    )
    parser.add_argument("--tpu", type=_refuse_tpu, help=argparse.SUPPRESS)
    add_shared(parser)
    parser.add_argument(
        "--spmd",
        type=positive,
        metavar="N",
        help="one worker that drives N devices as a mesh (N, 1) with axes data and model; virtual devices on XLA:CPU",
    )
    parser.add_argument(
        "--tpu-branch",
        action=argparse.BooleanOptionalAction,
        help="without a TPU: XLA:CPU takes its place, so that torch_xla, accelerate and Trainer take their TPU branch "
        "(default: where its plugin is installed)",
    )
    parser.add_argument(
        "--as",
        dest="stands_for",
        default="",
        metavar="TARGET",
        help="without a TPU: rehearse the ranks of that TPU, v5e-8 for example, and tell libraries its type",
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help='cache compiled programs in DIR for later runs (on a TPU; "off" disables it)',
    )
    parser.add_argument(
        "--checkpoints",
        metavar="PLACE",
        help="save checkpoints of all runs in PLACE, a folder or an address such as gs://bucket/run1, so that "
        '%%%%tpu_train --resume can go on after a disconnect ("off": none)',
    )
    parser.add_argument(
        "--hosts",
        default="",
        metavar="ADDRESS",
        help="train on all hosts of a Ray cluster: ray (the one this machine is part of), ray://HOST:PORT, HOST:PORT; "
        "-n then counts the ranks of all hosts (default: off, which is this host)",
    )
    parser.add_argument(
        "--target",
        type=Targets,
        default="",
        metavar="T",
        help="with --hosts, the TPU slice to request from the cluster (v5litepod-16, ...; default: what it has)",
    )
    return parser


_TRAIN_TEXTS = {
    "%%tpu_train": (
        "Train the last function of the cell (ARGs are Python expressions), the function given to notebook_launcher,\n"
        "xmp.spawn or torch_xla.launch in it, or its plain statements, on every device, in forked workers;\n"
        "for TensorFlow in this process, inside strategy.scope().",
        "Examples:\n  %%tpu_train model\n  %%tpu_train model 16 lr=1e-3 --steps 5\n",
    ),
    "%tpu_train": (
        "Train a function that exists already, or a script (its `_mp_fn(index)`, else the script itself), on every\n"
        "device, in forked workers.",
        "Examples:\n  %tpu_train training_function model\n  %tpu_train train.py --epochs 2\n",
    ),
}


def train_parser(prog: str) -> MagicParser:
    """%%tpu_train and %tpu_train"""
    parser = MagicParser(prog, *_TRAIN_TEXTS[prog])
    kind, metavar = (Expression, "ARG") if prog == "%%tpu_train" else (Script, "FUNCTION ARG")
    text = "expressions, evaluated in the notebook; key=expr too"
    parser.add_argument("args", nargs="*", type=kind, metavar=metavar, help=text)
    for one, _ in given_options():
        add_option(parser, one.name)
    return parser


def check_parser(prog: str) -> MagicParser:
    """%tpu_check and %%tpu_check"""
    cell = prog.startswith("%%")
    parser = MagicParser(
        prog,
        "Check code against the rules of XLA and of launching, before a TPU is used. Nothing is run: "
        + ("not even\nthis cell." if cell else "the code of\nthe cells so far is read."),
        "Examples:\n  %tpu_check\n  %tpu_check training_function\n  %tpu_check --ready\n"
        if not cell
        else "Example:\n  %%tpu_check --fix\n",
    )
    if not cell:
        parser.add_argument(
            "names",
            nargs="*",
            type=Definition,
            metavar="NAME",
            help="functions or classes, and what they call (default: all cells so far)",
        )
        parser.add_argument(
            "--ready",
            action="store_true",
            help="the checklist before asking for a TPU, with the evidence for each item; with NAME, for training it",
        )
    changes = parser.add_mutually_exclusive_group()
    what = "replace this cell by the fixed one" if cell else "show the fixed cells, to be pasted"
    changes.add_argument("--fix", action="store_true", help=what)
    changes.add_argument("--diff", action="store_true", help="show what --fix would change")
    parser.add_argument("--unsafe-fixes", action="store_true", help="with --fix: also fixes that may change results")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--select", type=RuleCodes, metavar="CODES", help="only these rules or groups, separated by commas"
    )
    parser.add_argument("--ignore", type=RuleCodes, metavar="CODES", help="without these rules or groups")
    chosen.add_argument(
        "--migrate",
        action="store_const",
        const="migrate",
        dest="select",
        help="what of torch_xla has which counterpart in TorchTPU",
    )
    return parser


def runs_parser() -> MagicParser:
    """%tpu_runs"""
    parser = MagicParser(
        "%tpu_runs",
        "List the newest runs of this folder, or compare some.",
        "Examples:\n  %tpu_runs\n  %tpu_runs first second\n  %tpu_runs --all --csv runs.csv\n",
    )
    parser.add_argument(
        "runs", nargs="*", type=RunName, metavar="RUN", help="names or ids; `last` is this notebook's newest"
    )
    add_listed(parser)
    parser.add_argument("--plain", action="store_true", help="without times, ids and sizes")
    return parser


def add_listed(parser: argparse.ArgumentParser) -> None:
    """The options for how many runs are listed."""
    listed = parser.add_mutually_exclusive_group()
    listed.add_argument(
        "-n", "--newest", type=positive, default=20, metavar="N", help="list the newest N (default: 20)"
    )
    listed.add_argument("--all", action="store_const", const=None, dest="newest", help="list all")
    parser.add_argument(
        "--csv", metavar="FILE", help='write them to FILE as a table instead, one row for each run ("-": print it)'
    )


def _add_run(parser: MagicParser, default: str | None = "last", text: str = "the newest") -> None:
    parser.add_argument(
        "run", nargs="?", type=RunName, default=default, metavar="RUN", help=f"name or id (default: {text})"
    )


def panel_parser() -> MagicParser:
    """%tpu_panel"""
    parser = MagicParser(
        "%tpu_panel", "Show a run: its steps, compiles and their causes, precision, memory. Live while it runs."
    )
    _add_run(parser)
    parser.add_argument("--all", action="store_true", dest="everything", help="print everything as text")
    return parser


def logs_parser() -> MagicParser:
    """%tpu_logs"""
    parser = MagicParser("%tpu_logs", "Show the output of a rank.")
    _add_run(parser)
    parser.add_argument("-r", "--rank", type=count, default=0, metavar="RANK", help="the rank (default: 0)")
    return parser


def stop_parser() -> MagicParser:
    """%tpu_stop"""
    parser = MagicParser(
        "%tpu_stop",
        "Stop the run in the background. The notebook's models stay unchanged. With a place for checkpoints\n"
        "(%tpu_init --checkpoints) it is saved first.",
    )
    _add_run(parser, None, "the active run")
    parser.add_argument("--save", action="store_true", help="do not stop a run that cannot be saved first")
    return parser


def pod_parser() -> MagicParser:
    """%tpu_pod"""
    parser = MagicParser(
        "%tpu_pod",
        "Dry run for many hosts: the hosts and ranks of a run, the data sent to each host and its size, and how the\n"
        "weights are copied back. Also links to the pages on creating such hosts. Nothing is run.",
        "Examples:\n  %tpu_pod\n  %tpu_pod training_function model\n  %tpu_pod --target v5litepod-16\n",
    )
    parser.add_argument(
        "args",
        nargs="*",
        type=Script,
        metavar="FUNCTION ARG",
        help="the training, as %%tpu_train FUNCTION ARG takes it",
    )
    parser.add_argument(
        "--target", type=Targets, default="", metavar="T", help="plan for this TPU slice, whether it exists or not"
    )
    return parser


def pad_parser() -> MagicParser:
    """%tpu_pad"""
    parser = MagicParser(
        "%tpu_pad",
        "The cost of padding: distinct shapes (each is a compile), padded tokens and predicted seconds of several\n"
        "paddings, and the best of them with its line of code.",
        "Examples:\n  %tpu_pad dataset\n  %tpu_pad dataset['input_ids'] --batch 16 --max-length 512\n"
        "  %tpu_pad [len(ids) for ids in texts] --multiples 16,32\n",
    )
    parser.add_argument(
        "lengths",
        nargs="?",
        type=Expression,
        metavar="LENGTHS",
        help="an expression: lengths, lists of token ids, an array, a tokenised dataset or its column, a DataLoader",
    )
    parser.add_argument(
        "--multiples", type=counts, default=(32, 64, 128), metavar="M,M", help="to pad to (default: 32,64,128)"
    )
    parser.add_argument(
        "--batch", type=count, metavar="N", help="samples of a batch on one rank (default: the DataLoader's, else 32)"
    )
    parser.add_argument(
        "--max-length", type=count, metavar="N", help="truncate longer samples to N (default: the longest sample)"
    )
    parser.add_argument("--buckets", type=count, metavar="K", help="K buckets (default: the best of 2 to 8)")
    parser.add_argument(
        "--align", type=count, default=1, metavar="N", help="bounds of buckets are multiples of N (default: 1)"
    )
    parser.add_argument("--epochs", type=count, default=1, metavar="N", help="epochs to predict (default: 1)")
    parser.add_argument(
        "-n", "--processes", type=count, metavar="N", help="ranks that step together (default: those of %%tpu_init)"
    )
    parser.add_argument(
        "--run",
        type=RunName,
        metavar="RUN",
        help="take measured seconds from the runs of this name (default: the newest run's)",
    )
    parser.add_argument("--compile-seconds", type=seconds, metavar="S", help="of one compile, instead of measured ones")
    parser.add_argument(
        "--tokens-per-second", type=seconds, metavar="R", help="of one rank in training, instead of measured ones"
    )
    parser.add_argument(
        "--plain", action="store_true", help="text only, without measured seconds: the same in every run, for comparing"
    )
    return parser


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """The options that both have."""
    parser.add_argument(
        "--fix",
        action="store_true",
        help="apply the safe fixes (variables of this session, an unused lock file), list them, and check again",
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def doctor_parser() -> MagicParser:
    """%tpu_doctor"""
    parser = MagicParser(
        "%tpu_doctor",
        "Find the problems of this environment, each with the command that fixes it: packages, versions, libtpu,\n"
        "devices and their users, variables, memory, disk, widgets, the metadata server. Starts no runtime.",
    )
    add_doctor(parser)
    return parser


def preflight_parser() -> MagicParser:
    """%tpu_preflight"""
    parser = MagicParser(
        "%tpu_preflight",
        "Compile the steps of a training function for a TPU that is not attached, with the TPU compiler: does it\n"
        "fit, is it bf16, what does it cost? No step is executed.",
        "Examples:\n  %tpu_preflight training_function model --target v5e-8\n"
        "  %tpu_preflight training_function model batch=32 --target v5e-8,v6e-8 --fit batch\n",
    )
    parser.add_argument(
        "args",
        nargs="*",
        type=Function,
        metavar="FUNCTION ARG",
        help="expressions, evaluated in the notebook; key=expr too",
    )
    add_preflight(parser)
    parser.add_argument(
        "-o", "--output", default="_preflight", metavar="NAME", help="the result's name (default: _preflight)"
    )
    parser.add_argument("--plain", action="store_true", help="text only, without times: the same in every run")
    return parser


def add_preflight(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """What %tpu_preflight and `python -m tpu_magics preflight` have in common. `required`: it needs a target."""
    for one, _ in given_options(PreflightOptions):
        add_option(parser, one.name, PreflightOptions, required and one.name == "target")


PARSERS: Mapping[str, Callable[[], MagicParser]] = {
    "%tpu_init": init_parser,
    "%%tpu_train": partial(train_parser, "%%tpu_train"),
    "%tpu_train": partial(train_parser, "%tpu_train"),
    "%%tpu_check": partial(check_parser, "%%tpu_check"),
    "%tpu_check": partial(check_parser, "%tpu_check"),
    "%tpu_runs": runs_parser,
    "%tpu_panel": panel_parser,
    "%tpu_logs": logs_parser,
    "%tpu_stop": stop_parser,
    "%tpu_preflight": preflight_parser,
    "%tpu_pad": pad_parser,
    "%tpu_doctor": doctor_parser,
    "%tpu_pod": pod_parser,
}


def doc(name: str) -> str:
    """The help of a magic as its docstring. Where there is a cell magic of the same name, the line magic's begins with
    what that one is: asked for help on a line that begins with %%, front ends show the line magic's."""
    cell = PARSERS[f"%{name}"]() if f"%{name}" in PARSERS else None
    first = f"{cell.format_usage()}\n{cell.description}\n\n{cell.epilog}\n" if cell else ""
    return first + PARSERS[name]().format_help()
