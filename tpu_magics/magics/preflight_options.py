"""The options of `%tpu_preflight` and of `python -m tpu_magics preflight`."""

from __future__ import annotations

import argparse

from tpu_magics.backends.base import STEPS
from tpu_magics.magics.parser import MagicParser, add_precision, count


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
        "args", nargs="*", metavar="FUNCTION ARG", help="expressions, evaluated in the notebook; key=expr too"
    )
    add_preflight(parser)
    parser.add_argument(
        "-o", "--output", default="_preflight", metavar="NAME", help="the result's name (default: _preflight)"
    )
    parser.add_argument("--plain", action="store_true", help="text only, without times: the same in every run")
    return parser


def add_preflight(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """What %tpu_preflight and `python -m tpu_magics preflight` have in common."""
    text = "TPUs: v5e-8 (Google: v5litepod-8), v6e-1, v4-8, v5p-8, ..."
    parser.add_argument("--target", required=required, metavar="T,T", help=text)
    parser.add_argument(
        "--fit",
        metavar="NAME",
        help="search the largest value that fits of an argument or of a name in the notebook: exact below 4,096, to "
        "1 %% above; the figures are then for the largest multiple of 8",
    )
    parser.add_argument(
        "--steps", type=count, default=STEPS, metavar="N", help=f"trace at most N steps (default: {STEPS})"
    )
    add_precision(parser)
    parser.add_argument(
        "-n", "--processes", type=count, metavar="N", help="number of ranks (default: those of the target)"
    )
    parser.add_argument("--spmd", action="store_true", help="one process drives all devices of the target as a mesh")
    parser.add_argument("--anew", action="store_true", help="compile again, and cache nothing")
    parser.add_argument("--force", action="store_true", help="trace even if there is not enough host memory (estimate)")
