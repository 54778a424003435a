"""The options of `%tpu_doctor` and of `python -m tpu_magics doctor`, declared once.

What lives here: that. What does not: what is done with them (doctor.py).
"""

from __future__ import annotations

import argparse

from tpu_magics.magics.parser import MagicParser


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """The options that both have."""
    parser.add_argument(
        "--fix",
        action="store_true",
        help="do what is safe (variables of this session, a lock file that nobody uses), list it, and look again",
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def doctor_parser() -> MagicParser:
    """%tpu_doctor"""
    parser = MagicParser(
        "%tpu_doctor",
        "Find out what is wrong with this environment, and the one command that mends it: packages, versions, libtpu,\n"
        "devices, who holds them, variables, memory, disk, widgets, the metadata server. Starts no runtime.",
    )
    add_doctor(parser)
    return parser
