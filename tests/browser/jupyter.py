"""A running Jupyter server of an installed wheel, and what a person does in JupyterLab and Notebook 7, each action with
a wait for its effect.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.installed import ROOT, Environment
from tpu_magics.panel.run_state import RunModel
from tpu_magics.panel.run_view import RunView
from tpu_magics.runs.reader import list_runs

CHROMIUM = Path("/usr/bin/chromium")
# Milliseconds until a page, a kernel or a run has begun, and until a page shows what it was told: on a busy machine.
START, SOON = 90_000, 20_000
expect.set_options()
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
OPTIONS = (
    *("--no-browser", "--allow-root", "--expose-app-in-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"),
    *("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"),
)


@dataclass(frozen=True)
class Server:
    """`folder`: where its notebooks lie. `url`: ends in a slash."""

    folder: Path
    url: str
    token: str
    environment: Environment


@contextmanager
def running_server(environment: Environment, program: str = "jupyterlab") -> Iterator[Server]:
    """A server that is surely gone afterwards, with its kernels and what they started."""
    folder = environment.folder / f"{program}-notebooks"
    folder.mkdir()
    log = environment.folder / f"{program}.log"
    variables = environment.variables(PJRT_DEVICE="CPU", NO_COLOR="1")
    command = [str(environment.python), "-m", program, *OPTIONS, f"--ServerApp.root_dir={folder}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
    try:
        about = _announced(process, Path(variables["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{process.pid}.json", log)
        yield Server(folder, about["url"], about["token"], environment)
    finally:
        _end(process)


def _announced(process: subprocess.Popen[bytes], file: Path, log: Path) -> dict[str, Any]:
    until = time.monotonic() + START / 1000
    while process.poll() is None and time.monotonic() < until:
        try:
            return dict(json.loads(file.read_text()))
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.05)
    raise AssertionError(f"the server did not start:\n{log.read_text()[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    import psutil

    below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for left in below:
        try:
            left.kill()
        except psutil.NoSuchProcess:
            pass


class Notebook:
    """A notebook that is open in a page of JupyterLab, or of Notebook 7 with `classic`."""

    def __init__(self, server: Server, page: Page, path: str, classic: bool = False) -> None:
        self.server, self.page, self.path = server, page, path
        place = f"notebooks/{path}" if classic else f"lab/workspaces/{uuid.uuid4().hex}/tree/{path}"
        page.goto(f"{server.url}{place}?token={server.token}")
        self.await_it()

    def await_it(self) -> None:
        """It is drawn, and nothing is in its way."""
        expect(self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").first).to_be_visible(timeout=START)

    def await_kernel(self) -> None:
        """There is one, it has answered, and it has nothing to do."""
        self.page.wait_for_function(
            """() => {
                const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
                const kernel = context?.isReady && context.session?.kernel;
                return kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle';
            }""",
            timeout=START,
        )

    def refuse_kernel(self) -> None:
        """Answer the question for a kernel with none."""
        self.page.locator(".jp-Dialog button", has_text="No Kernel").click(timeout=START)

    @property
    def shown(self) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    # -- what a person does -------------------------------------------------------------------------------------------
    def command(self, name: str, **arguments: Any) -> None:
        """A command of JupyterLab's, which may be on its way when this returns."""
        code = "([name, args]) => { void window.jupyterapp.commands.execute(name, args); }"
        self.page.evaluate(code, [name, arguments])

    def in_palette(self, name: str) -> Locator:
        """A command as the palette offers it, which is open afterwards."""
        text = self.page.locator(".lm-CommandPalette-input:visible")
        if not text.count():
            self.command("apputils:activate-command-palette")
        text.fill("TPU")
        return self.page.locator(".lm-CommandPalette-itemLabel").filter(has_text=re.compile(f"^{name}$"))

    def run_all(self) -> None:
        self.command("notebook:run-all-cells")

    def cell(self, index: int) -> Locator:
        return self.shown.locator(f'.jp-Cell[data-windowed-list-index="{index}"]')

    def choose(self, index: int) -> None:
        """A click beside the cell: command mode."""
        self.cell(index).locator(".jp-InputArea-prompt").click()

    def run_cell(self, index: int) -> None:
        self.choose(index)
        self.command("notebook:run-cell")

    def source(self, index: int) -> str:
        code = "index => window.jupyterapp.shell.currentWidget.content.widgets[index].model.sharedModel.getSource()"
        return str(self.page.evaluate(code, index))

    def show_panel(self) -> Locator:
        """By a click on the status bar's item; the panel is open afterwards."""
        self.status.click()
        expect(self.panel).to_be_visible()
        return self.panel

    # -- what a person sees -------------------------------------------------------------------------------------------
    @property
    def status(self) -> Locator:
        return self.page.locator(".tpu-StatusItem button")

    @property
    def panel(self) -> Locator:
        return self.page.get_by_role("region", name="TPU runs", exact=True)

    @property
    def state(self) -> Locator:
        return self.panel.locator(".tpu-Title [role=status]")

    @property
    def rows(self) -> Locator:
        """The compiles of the panel, once their section is unfolded."""
        return self.section("compiles").locator("tbody tr[data-key]")

    @property
    def output(self) -> Locator:
        """The run in the output of a cell."""
        return self.shown.locator(".tpu-Output")

    @property
    def badges(self) -> Locator:
        return self.shown.locator("button.jp-tpu-badge:visible")

    def section(self, name: str, where: Locator | None = None) -> Locator:
        return (where or self.panel).locator(f'section[data-section="{name}"]')

    def unfold(self, name: str, where: Locator | None = None) -> Locator:
        """A section of the panel, or of another place, which is unfolded afterwards."""
        section = self.section(name, where)
        head = section.locator("h3 > button")
        # Again, if the first problem of a run unfolded it just before the click.
        while head.get_attribute("aria-expanded", timeout=START) == "false":
            head.click()
            self.page.wait_for_timeout(100)
        return section

    def figure(self, label: str, where: Locator | None = None) -> Locator:
        """A number at the top."""
        shown = (where or self.panel).locator(".tpu-Figure").filter(has=self.page.get_by_text(label, exact=True))
        return shown.locator(".tpu-Figure-value")

    # -- what the record says -----------------------------------------------------------------------------------------
    def record(self) -> RunView:
        """The newest run of the folder in which the notebook lies."""
        folder = (self.server.folder / self.path).parent
        [newest, *_] = list_runs(folder / ".tpu_runs")
        model = RunModel(newest)
        model.refresh()
        return model.view()


def write_notebook(file: Path, *cells: str, outputs: Sequence[dict[str, Any]] = (), kernel: str = "") -> None:
    """Code cells with lasting ids. `outputs`: what the last one has displayed; `kernel`: one that is not here."""
    import nbformat

    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {**KERNEL, "name": kernel} if kernel else KERNEL})
    notebook.cells = [nbformat.v4.new_code_cell(text, id=f"cell-{n}") for n, text in enumerate(cells)]
    notebook.cells[-1].outputs = [nbformat.v4.new_output("display_data", each) for each in outputs]
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, file)


def copied(server: Server, name: str, folder: str = "") -> str:
    """The path of a tutorial's copy, in a new folder. It names a kernel there, else JupyterLab asks for one."""
    import nbformat

    tutorial = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    tutorial.metadata["kernelspec"] = KERNEL
    path = f"{folder or Path(name).stem}/{name}"
    (server.folder / path).parent.mkdir()
    nbformat.write(tutorial, server.folder / path)
    return path


@contextmanager
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def opened_page(browser: Browser) -> Iterator[Page]:
    """An empty one. `said`: what it writes to its console."""
    context = browser.new_context(viewport={"width": 1500, "height": 900})
    opened: Any = context.new_page()
    opened.said = said = []
    opened.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: said.append(f"error: {error}"))
    try:
        yield opened
    finally:
        context.close()


def serious(page: Page, where: str) -> list[str]:
    """What axe finds wrong within a selector, serious and worse: rule, and the first element."""
    source = ROOT / "labextension/node_modules/axe-core/axe.min.js"
    if not page.evaluate("typeof window.axe !== 'undefined'"):
        page.add_script_tag(path=str(source))
    found = page.evaluate("where => window.axe.run(where, {resultTypes: ['violations']})", where)
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]} ({one['nodes'][0]['failureSummary'][:300]})"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
