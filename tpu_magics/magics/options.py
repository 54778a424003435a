"""The options of the magics, each declared once; help and docstrings are made from here.

What lives here: parsing words into values. What does not: what is done with them.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from tpu_magics.backends.base import STEPS
from tpu_magics.errors import TpuMagicsError


class MagicParser(argparse.ArgumentParser):
    """An argument parser that raises TpuMagicsError, offers the nearest option, and never leaves the process."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("-h", "--help", action="store_true", help="show this help")

    def error(self, message: str) -> NoReturn:
        raise TpuMagicsError(
            f"{self.prog}: {message}.",
            "",
            f"Look at {self.prog} -h for what it takes.",
        )

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a line; unknown options get the nearest known one offered."""
        found, left = self.parse_known_intermixed_args(list(words))
        if left:
            self._refuse(left[0])
        return found

    def _refuse(self, word: str) -> NoReturn:
        known = [option for action in self._actions for option in action.option_strings]
        if not word.startswith("-"):
            raise TpuMagicsError(
                f"{self.prog} does not take {word!r} here.",
                "It has no more ARGs than its help says; an expression with blanks in it is several words.",
                f"Look at {self.prog} -h, or give the expression a name and use that.",
            )
        option = word.split("=")[0]
        near = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise TpuMagicsError(
            f"{self.prog} has no option {option}{hint}",
            f"Its options are {', '.join(sorted(known, key=str.lower))}.",
            f'Look at {self.prog} -h. An ARG that begins with a minus is written in brackets: "({word})".',
        )

    def doc(self) -> str:
        """The help as a docstring."""
        return self.format_help()


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(",") if part.strip())


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def add_shared(parser: MagicParser) -> None:
    """What %tpu_init sets for the session and %%tpu_train for one run."""
    parser.add_argument(
        "-n",
        "--processes",
        type=_count,
        metavar="N",
        help="number of ranks (default: all TPU devices; 1 on XLA:CPU, where more are a rehearsal)",
    )
    parser.add_argument(
        "--collective-timeout",
        type=_seconds,
        metavar="S",
        help="in a rehearsal, stop the run when a rank has waited S seconds in a collective (default: 60)",
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "bf16", "bf16-downcast"),
        help="bf16: float and double become bfloat16; bf16-downcast: float becomes bfloat16, double float32",
    )


def init_parser() -> MagicParser:
    """%tpu_init"""
    parser = MagicParser(
        "%tpu_init",
        "Find out where this notebook runs, which TPU it has and which versions fit, and set the session's defaults.\n"
        "PyTorch/XLA's runtime is never started in the notebook's process; TensorFlow trains in it: its strategy is\n"
        "made here, and is the notebook's `strategy`.",
    )
    parser.add_argument(
        "--framework",
        choices=("auto", "torch", "tensorflow"),
        default="auto",
        help="what cells train with (default: auto, which is what the notebook has imported)",
    )
    parser.add_argument(
        "--tpu", default="", metavar="NAME", help="TensorFlow: the name or grpc:// address of a TPU on another host"
    )
    add_shared(parser)
    parser.add_argument(
        "--spmd",
        type=_count,
        metavar="N",
        help="one worker that drives N devices as a mesh (N, 1) with the axes data and model; on XLA:CPU virtual ones",
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help='keep compiled programs in DIR and take them from there in later runs (on a TPU; "off" turns it off)',
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
    metavar = "ARG" if prog == "%%tpu_train" else "FUNCTION ARG"
    parser.add_argument("args", nargs="*", metavar=metavar, help="expressions, evaluated in the notebook; key=expr too")
    add_shared(parser)
    parser.add_argument(
        "--spmd",
        action="store_true",
        help="one worker that drives all devices as a mesh; on XLA:CPU 8 virtual ones, or those of %%tpu_init --spmd N",
    )
    parser.add_argument(
        "--hoist",
        choices=("auto", "off"),
        default="auto",
        help="build models of the function once, in the notebook (default: auto)",
    )
    parser.add_argument(
        "-o", "--output", default="_tpu", metavar="NAME", help="the name that gets the result (default: _tpu)"
    )
    parser.add_argument("--background", action="store_true", help="return at once; _tpu.wait() brings the results home")
    parser.add_argument(
        "--steps", type=_count, metavar="N", help="stop after N steps, with the notebook's models unchanged"
    )
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="stop the run after S seconds")
    parser.add_argument(
        "--force", action="store_true", help="run although the forecast says that memory or disk will not do"
    )
    parser.add_argument(
        "--max-recompiles",
        type=_count,
        metavar="N",
        help="stop the run at recompile N+1, with the table of causes",
    )
    parser.add_argument(
        "--preflight",
        metavar="T",
        help="compile for that TPU first (v5e-8, ...), and do not start where it cannot fit",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="do not start where the code breaks a rule of XLA or of launching (%%tpu_check shows them)",
    )
    parser.add_argument(
        "--jit",
        choices=("auto", "keep"),
        default="auto",
        help="TensorFlow: compile steps with XLA at home and leave that to the strategy on a TPU (auto), or change "
        "nothing (keep)",
    )
    parser.add_argument(
        "--keep-partial",
        action="store_true",
        help="TensorFlow: keep what was learned until a failure or an interrupt, instead of the weights before",
    )
    parser.add_argument("--run-name", metavar="NAME", help="name of the run (default: the function's)")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="no panel; end with a summary without times, ids and sizes, for comparing",
    )
    return parser


def preflight_parser() -> MagicParser:
    """%tpu_preflight"""
    parser = MagicParser(
        "%tpu_preflight",
        "Compile the steps of a training function for a TPU that is not here, with the TPU's own compiler: does it\n"
        "fit, is it bf16, what will it cost? No step is executed.",
        "Examples:\n  %tpu_preflight training_function model --target v5e-8\n"
        "  %tpu_preflight training_function model batch=32 --target v5e-8,v6e-8 --fit batch\n",
    )
    parser.add_argument(
        "args", nargs="*", metavar="FUNCTION ARG", help="expressions, evaluated in the notebook; key=expr too"
    )
    add_preflight(parser)
    parser.add_argument(
        "-o",
        "--output",
        default="_preflight",
        metavar="NAME",
        help="the result's name (default: _preflight)",
    )
    parser.add_argument("--plain", action="store_true", help="text only, without times: the same in every run")
    return parser


def add_preflight(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """What %tpu_preflight and `python -m tpu_magics preflight` have in common."""
    text = "TPUs: v5e-8 (Google: v5litepod-8), v6e-1, v4-8, v5p-8, ..."
    parser.add_argument("--target", required=required, metavar="T,T", help=text)
    parser.add_argument(
        "--fit", metavar="NAME", help="search the largest value of an argument, or of a name in the notebook, that fits"
    )
    parser.add_argument(
        "--steps", type=_count, default=STEPS, metavar="N", help=f"trace at most N steps (default: {STEPS})"
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "bf16", "bf16-downcast"),
        help="bf16: float and double become bfloat16; bf16-downcast: float becomes bfloat16, double float32",
    )
    parser.add_argument(
        "-n", "--processes", type=_count, metavar="N", help="number of ranks (default: those of the target)"
    )
    parser.add_argument("--spmd", action="store_true", help="one process drives all devices of the target as a mesh")
    parser.add_argument("--anew", action="store_true", help="compile anew, and keep nothing")
    parser.add_argument(
        "--force", action="store_true", help="trace although the forecast says that host memory will not do"
    )


def check_parser(prog: str) -> MagicParser:
    """%tpu_check and %%tpu_check"""
    cell = prog.startswith("%%")
    parser = MagicParser(
        prog,
        "Check code against XLA's rules and the launcher's, before a TPU is touched. Nothing is run: "
        + ("not the\ncell either." if cell else "the code of the\ncells so far is read."),
        "Examples:\n  %tpu_check\n  %tpu_check training_function\n  %tpu_check --ready\n"
        if not cell
        else "Example:\n  %%tpu_check --fix\n",
    )
    if not cell:
        parser.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="functions or classes, and what they call (default: all cells so far)",
        )
        parser.add_argument(
            "--ready",
            action="store_true",
            help="the checklist before asking for a TPU, with the evidence for each item; with NAME, for training it",
        )
    changes = parser.add_mutually_exclusive_group()
    what = "put the mended cell in the place of this one" if cell else "show the mended cells, to be pasted"
    changes.add_argument("--fix", action="store_true", help=what)
    changes.add_argument("--diff", action="store_true", help="show what --fix would change")
    parser.add_argument("--select", metavar="CODES", help="only these rules or groups, with commas between")
    parser.add_argument("--ignore", metavar="CODES", help="not these rules or groups")
    return parser


def runs_parser() -> MagicParser:
    """%tpu_runs"""
    parser = MagicParser("%tpu_runs", "List the runs of this folder, or show some side by side.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="names or ids; `last` is the newest")
    parser.add_argument("--plain", action="store_true", help="without times, ids and sizes")
    return parser


def panel_parser() -> MagicParser:
    """%tpu_panel"""
    parser = MagicParser(
        "%tpu_panel", "Show a run: its steps, compiles and their causes, precision, memory. Live while it goes on."
    )
    parser.add_argument("run", nargs="?", default="last", metavar="RUN", help="name or id (default: the newest)")
    return parser


def logs_parser() -> MagicParser:
    """%tpu_logs"""
    parser = MagicParser("%tpu_logs", "Show what a rank printed.")
    parser.add_argument("run", nargs="?", default="last", metavar="RUN", help="name or id (default: the newest)")
    parser.add_argument("-r", "--rank", type=_count, default=0, metavar="RANK", help="the rank (default: 0)")
    return parser


def stop_parser() -> MagicParser:
    """%tpu_stop"""
    parser = MagicParser(
        "%tpu_stop", "Stop the run that goes on in the background. The notebook's models stay as they are."
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="name or id (default: the one that is going on)")
    return parser


def pad_parser() -> MagicParser:
    """%tpu_pad"""
    parser = MagicParser(
        "%tpu_pad",
        "What padding costs: distinct shapes (each is a compile), padded tokens and predicted seconds of several ways\n"
        "to pad, and the best of them with the line of code that does it.",
        "Examples:\n  %tpu_pad dataset\n  %tpu_pad dataset['input_ids'] --batch 16 --max-length 512\n"
        "  %tpu_pad [len(ids) for ids in texts] --multiples 16,32\n",
    )
    parser.add_argument(
        "lengths",
        nargs="?",
        metavar="LENGTHS",
        help="an expression: lengths, lists of token ids, an array, a tokenised dataset or its column, a DataLoader",
    )
    parser.add_argument(
        "--multiples", type=_counts, default=(32, 64, 128), metavar="M,M", help="to pad to (default: 32,64,128)"
    )
    parser.add_argument(
        "--batch", type=_count, metavar="N", help="samples of a batch on one rank (default: the DataLoader's, else 32)"
    )
    parser.add_argument(
        "--max-length", type=_count, metavar="N", help="longer samples are cut to it (default: the longest sample)"
    )
    parser.add_argument("--buckets", type=_count, metavar="K", help="K buckets (default: the best of 2 to 8)")
    parser.add_argument(
        "--align", type=_count, default=1, metavar="N", help="bounds of buckets are multiples of N (default: 1)"
    )
    parser.add_argument("--epochs", type=_count, default=1, metavar="N", help="epochs to predict (default: 1)")
    parser.add_argument(
        "-n", "--processes", type=_count, metavar="N", help="ranks that step together (default: those of %%tpu_init)"
    )
    parser.add_argument(
        "--run", metavar="RUN", help="take measured seconds from the runs of this name (default: the newest run's)"
    )
    parser.add_argument(
        "--compile-seconds", type=_seconds, metavar="S", help="of one compile, instead of measured ones"
    )
    parser.add_argument(
        "--tokens-per-second", type=_seconds, metavar="R", help="of one rank in training, instead of measured ones"
    )
    parser.add_argument(
        "--plain", action="store_true", help="text only, without measured seconds: the same in every run, for comparing"
    )
    return parser
