"""`python -m tpu_magics ...`: the command line: runs, checks, preflights, the doctor."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from tpu_magics.check.cli import add_arguments as add_check_arguments
from tpu_magics.check.cli import run as run_check
from tpu_magics.errors import TpuMagicsError
from tpu_magics.magics.options import add_doctor, add_listed
from tpu_magics.magics.preflight_command import add_arguments as add_preflight_arguments
from tpu_magics.magics.preflight_command import run as run_preflight
from tpu_magics.output import give_up, lost


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tpu-magics",
        description="Show runs, check code, compile for a TPU, and examine this host, from a shell.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    host = commands.add_parser("host", help="environment, TPU and versions: the table of %%tpu_init")
    host.set_defaults(run=_host)
    for name, text, run in (
        ("runs", "list the runs of a folder, or compare some", _runs),
        ("summary", "the newest run, or the one named", _summary),
        ("logs", "the output of a rank", _logs),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("names", nargs="*", metavar="RUN")
        command.add_argument("--runs", type=Path, metavar="DIR", help="the folder of the runs (default: .tpu_runs)")
        command.add_argument(
            "-r", "--rank", type=int, default=0, help=argparse.SUPPRESS if name != "logs" else "the rank"
        )
        if name == "runs":
            add_listed(command)
        command.set_defaults(run=run)
    sanitize = commands.add_parser("nbval-sanitize", help="print the path of the sanitize file for nbval")
    sanitize.set_defaults(run=lambda _: print(Path(__file__).parent / "nbval_sanitize.cfg"))
    check = commands.add_parser("check", help="check Python files and notebooks against the rules of XLA")
    add_check_arguments(check)
    check.set_defaults(run=run_check)
    server = commands.add_parser("server", help="the checker for editors, by the Language Server Protocol")
    server.set_defaults(run=_server)
    preflight = commands.add_parser("preflight", help="compile a training function for a TPU that is not attached")
    add_preflight_arguments(preflight)
    preflight.set_defaults(run=run_preflight)
    doctor = commands.add_parser("doctor", help="find the problems of this environment, each with its fix")
    add_doctor(doctor)
    doctor.set_defaults(run=_doctor)
    found = parser.parse_args(argv)
    _encodable()
    try:
        code = found.run(found) or 0
        print(end="", flush=True)  # what is still held fails here, if it does, and not after the end
        return code
    except TpuMagicsError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        if not lost(error):
            raise
        return give_up(error)


def _encodable() -> None:
    """Marks such as ✓ come out as ? where the terminal's encoding has none, and do not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            try:
                "✓…".encode(stream.encoding)
            except UnicodeEncodeError:
                stream.reconfigure(errors="replace")


def _server(_found: argparse.Namespace) -> None:
    try:
        from tpu_magics.check.server import main as serve
    except ModuleNotFoundError as missing:
        raise TpuMagicsError(
            "The server for editors needs pygls, which is not installed.",
            f"There is no module {missing.name}.",
            'Run `pip install "tpu-magics[lsp]"`.',
        ) from None
    serve()


def _host(_found: argparse.Namespace) -> None:
    from tpu_magics.host import inspect_host
    from tpu_magics.panel.host import host_table
    from tpu_magics.panel.table import to_text

    print(to_text(host_table(inspect_host())))


def _doctor(found: argparse.Namespace) -> int:
    from tpu_magics.magics.doctor import run_command

    return run_command(found)


def _runs(found: argparse.Namespace) -> None:
    from tpu_magics.magics.runs_csv import write_csv
    from tpu_magics.panel.compared import compare, compared_text
    from tpu_magics.panel.runs import more_runs, runs_table
    from tpu_magics.panel.table import to_text
    from tpu_magics.runs.reader import find_run, newest_runs

    chosen = [find_run(name, found.runs) for name in found.names]
    shown, there = (chosen, len(chosen)) if chosen else newest_runs(found.newest, found.runs)
    if found.csv is not None:
        write_csv(shown, found.csv, more_runs(len(shown), there))
    else:
        print(to_text(compared_text(compare(chosen)) if chosen else runs_table(shown, there)))


def _summary(found: argparse.Namespace) -> None:
    from tpu_magics.panel.runs import summary_table
    from tpu_magics.panel.table import to_text
    from tpu_magics.runs.reader import find_run

    for name in found.names or ["last"]:
        print(to_text(summary_table(find_run(name, found.runs))))


def _logs(found: argparse.Namespace) -> None:
    from tpu_magics.runs.files import refused_record
    from tpu_magics.runs.reader import find_run

    run = find_run((found.names or ["last"])[0], found.runs)
    print(run.log(found.rank), end="")
    if refused := refused_record(run.log_path(found.rank)):
        print(refused, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
