"""The magics, and the shell's events that they use: parse, call, display."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from tpu_magics.backends.tensorflow import keras_settings
from tpu_magics.errors import TpuMagicsError
from tpu_magics.magics import lab, options

EVENTS = ("pre_run_cell", "post_run_cell")
RESULT = ("tpu_magics.launch.results", "TrainResult")


class UnrecordedCells:
    """The cells that a front end runs without a history (nbval does). `now`: the newest cell is one of them."""

    texts: list[str] = []
    now = False


def load(shell: Any) -> None:
    """Register the magics and the shell's events (idempotent). Imports no framework."""
    from tpu_magics.backends.frameworks import FRAMEWORKS, choose_torch
    from tpu_magics.backends.torch_xla.import_guard import forbid_torch_xla

    unload(shell)
    forbid_torch_xla()
    if FRAMEWORKS[choose_torch().package].at_load:
        from tpu_magics.launch import session

        session.current.backend.prepare_notebook()
    shell.register_magics(TpuMagics)
    shell.input_transformers_cleanup.append(cell_below_comments)
    listener = Listener(shell)
    for event in EVENTS:
        shell.events.register(event, getattr(listener, event))
    shell.Completer.magic_arg_matchers.append(listener.completions)
    shell.display_formatter.formatters["text/html"].for_type_by_name(*RESULT, result_html)
    lab.load(shell)


def unload(shell: Any) -> None:
    """Remove the magics and the events. A run in the background continues."""
    from tpu_magics.backends.torch_xla.import_guard import allow_torch_xla

    lab.unload(shell)
    allow_torch_xla()
    keras_settings.stop_recording_compile_calls()
    for event in EVENTS:
        for callback in [one for one in shell.events.callbacks[event] if _is_ours(one)]:
            shell.events.unregister(event, callback)
    matchers = shell.Completer.magic_arg_matchers
    matchers[:] = [one for one in matchers if not _is_ours(one)]
    shell.display_formatter.formatters["text/html"].pop(".".join(RESULT), None)
    transformers = shell.input_transformers_cleanup
    transformers[:] = [
        one for one in transformers if getattr(one, "__qualname__", "") != cell_below_comments.__qualname__
    ]
    for kind, names in TpuMagics.magics.items():
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)


def _is_ours(callback: Any) -> bool:
    """By name: after a reload of this module the class is another one."""
    kind = type(getattr(callback, "__self__", None))
    return (kind.__module__, kind.__qualname__) == (Listener.__module__, Listener.__qualname__)


def cell_below_comments(lines: list[str]) -> list[str]:
    """Allow comments (Colab's `#@title`) above `%%tpu_...`, and an empty cell below it (`%%tpu_train -h`): IPython
    would reject both before the magic sees them."""
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), None)
    if first is None or not lines[first].startswith("%%tpu_"):
        return lines
    kept = lines[first:]
    return kept if len(kept) > 1 else [kept[0].rstrip("\n") + "\n", "\n"]


def context_matcher(function: Any) -> Any:
    """Marks what IPython 8.6 and newer calls with a context. Its own decorator of this name is not in IPython 7."""
    function.matcher_api_version = 2
    return function


def result_html(result: Any) -> str:
    """A TrainResult in a notebook; its repr is its text."""
    from tpu_magics.panel import result as shown

    return shown.result_html(result.run)


class Listener:
    """Records the cells, loads the results of a background run before the next cell, and completes at Tab."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def pre_run_cell(self, info: Any) -> None:
        """The weights of a background run are loaded between cells, when nothing reads them."""
        import sys

        keras_settings.record_compile_calls()
        if info is not None and not info.silent:
            UnrecordedCells.now = not info.store_history
            if UnrecordedCells.now:
                UnrecordedCells.texts.append(str(info.raw_cell))
        session = sys.modules.get("tpu_magics.launch.session")
        going = session.current.active_run if session is not None else None
        if going is None or not going.options.background or not going.ended:
            return
        try:
            going.finish()
            print(
                f"tpu_magics: the background run {going.folder.name!r} has ended; its results are in the notebook.",
                flush=True,
            )
        except TpuMagicsError as error:
            ended = "was stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            print(f"tpu_magics: the background run {going.folder.name!r} {ended}.\n{error}", flush=True)

    def post_run_cell(self, result: Any) -> None:
        """Remember the first cell after which the runtime was up."""
        import sys

        from tpu_magics.magics.notebook import CELL_IDS

        cell_id = getattr(getattr(result, "info", None), "cell_id", None)
        if cell_id:
            CELL_IDS[f"In [{result.execution_count}]"] = str(cell_id)
        if "torch" not in sys.modules and "accelerate" not in sys.modules:
            return
        from tpu_magics.launch import session

        number = getattr(result, "execution_count", None) or self.shell.execution_count
        source = getattr(getattr(result, "info", None), "raw_cell", "")
        session.current.fork_blockers.record(
            session.current.backend, f"In [{number}]", self.shell.transform_cell(source), self.shell.user_ns
        )

    @context_matcher
    def completions(self, given: Any) -> Any:
        """Called by IPython's completer at each Tab, among the matchers of magics' arguments: alone of all kinds of
        matchers they keep jedi's words out in IPython 7, too. An error of ours would be shown in the person's cell."""
        try:
            if "%tpu_" in self.shell.Completer.line_buffer:
                from tpu_magics.magics.completion import matches

                return matches(self.shell, given)
        except Exception:
            pass
        return [] if isinstance(given, str) else {"completions": []}


def _notebook(shell: Any) -> Any:
    """The session's notebook, bound to this shell at the first magic."""
    from tpu_magics.launch import session
    from tpu_magics.magics.notebook import ShellNotebook

    notebook = session.current.notebook
    if not isinstance(notebook, ShellNotebook) or notebook.shell is not shell:
        session.current.notebook = ShellNotebook(shell, UnrecordedCells)
    return session.current.notebook


@magics_class
class TpuMagics(Magics):
    """The line and cell magics."""

    @line_magic
    def tpu_init(self, line: str) -> None:
        from tpu_magics.launch.cell import split_words
        from tpu_magics.magics import init

        parser = options.init_parser()
        found = parser.read(split_words(line))
        if found.help:
            print(parser.format_help())
            return
        _notebook(self.shell)
        init.initialise(
            found.precision,
            found.processes,
            found.cache,
            found.spmd,
            found.collective_timeout,
            found.framework,
            found.hosts,
            found.target,
            found.checkpoints,
            found.tpu_branch,
            found.stands_for,
        )

    @no_var_expand
    @cell_magic
    def tpu_train(self, line: str, cell: str) -> None:
        __tracebackhide__ = True
        self._train("%%tpu_train", line, cell)

    @no_var_expand
    @line_magic("tpu_train")
    def tpu_train_line(self, line: str) -> None:
        __tracebackhide__ = True
        self._train("%tpu_train", line, None)

    def _train(self, prog: str, line: str, cell: str | None) -> None:
        __tracebackhide__ = True
        from tpu_magics.launch.cell import split_words
        from tpu_magics.magics import train

        parser = options.train_parser(prog)
        words = split_words(line)
        found, args = train.read(parser, words)
        if found.help:
            print(parser.format_help())
            return
        train.run(_notebook(self.shell), found, args, line, cell)

    @no_var_expand
    @cell_magic
    def tpu_check(self, line: str, cell: str) -> None:
        self._check("%%tpu_check", line, cell)

    @no_var_expand
    @line_magic("tpu_check")
    def tpu_check_line(self, line: str) -> None:
        self._check("%tpu_check", line, None)

    def _check(self, prog: str, line: str, cell: str | None) -> None:
        from tpu_magics.launch.cell import split_words
        from tpu_magics.magics import check

        parser = options.check_parser(prog)
        found = parser.read(split_words(line))
        if found.help:
            print(parser.format_help())
            return
        check.run(_notebook(self.shell), found, cell)

    @line_magic
    def tpu_runs(self, line: str) -> None:
        from tpu_magics.launch.cell import split_words
        from tpu_magics.magics import runs_commands

        parser = options.runs_parser()
        found = parser.read(split_words(line))
        print(parser.format_help()) if found.help else runs_commands.runs(
            found.runs, found.plain, found.newest, found.csv
        )

    @line_magic
    def tpu_panel(self, line: str) -> None:
        from tpu_magics.launch.cell import split_words
        from tpu_magics.magics import runs_commands

        parser = options.panel_parser()
        found = parser.read(split_words(line))
        if found.help:
            print(parser.format_help())
            return
        _notebook(self.shell)
        runs_commands.show_run(found.run, found.everything)

    @line_magic
    def tpu_logs(self, line: str) -> None:
        from tpu_magics.launch.cell import split_words
        from tpu_magics.magics import runs_commands

        parser = options.logs_parser()
        found = parser.read(split_words(line))
        print(parser.format_help()) if found.help else runs_commands.logs(found.run, found.rank)

    @line_magic
    def tpu_stop(self, line: str) -> None:
        from tpu_magics.launch.cell import split_words
        from tpu_magics.magics import runs_commands

        parser = options.stop_parser()
        found = parser.read(split_words(line))
        print(parser.format_help()) if found.help else runs_commands.stop(found.run, found.save)

    @no_var_expand
    @line_magic
    def tpu_preflight(self, line: str) -> None:
        __tracebackhide__ = True
        from tpu_magics.launch.cell import split_words

        parser = options.preflight_parser()
        found = parser.read(split_words(line))
        if found.help:
            print(parser.format_help())
            return
        from tpu_magics.magics import preflight

        preflight.run(_notebook(self.shell), found)

    @no_var_expand
    @line_magic
    def tpu_pad(self, line: str) -> None:
        from tpu_magics.launch.cell import split_words
        from tpu_magics.magics import pad

        parser = options.pad_parser()
        found = parser.read(split_words(line))
        print(parser.format_help()) if found.help else pad.run(_notebook(self.shell), found)

    @line_magic
    def tpu_doctor(self, line: str) -> None:
        from tpu_magics.launch.cell import split_words

        parser = options.doctor_parser()
        found = parser.read(split_words(line))
        if found.help:
            print(parser.format_help())
            return
        from tpu_magics.magics import doctor

        doctor.run(found)

    @no_var_expand
    @line_magic
    def tpu_pod(self, line: str) -> None:
        __tracebackhide__ = True
        from tpu_magics.launch.cell import split_words

        parser = options.pod_parser()
        found = parser.read(split_words(line))
        if found.help:
            print(parser.format_help())
            return
        from tpu_magics.magics import pod

        pod.run(_notebook(self.shell), found)


for _name in options.PARSERS:
    _kind = "cell" if _name.startswith("%%") else "line"
    getattr(TpuMagics, TpuMagics.magics[_kind][_name.lstrip("%")]).__doc__ = options.doc(_name)
