"""The options of `%tpu_doctor` and of `python -m tpu_magics doctor`."""

from __future__ import annotations

import argparse

from tpu_magics.magics.parser import MagicParser


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
