"""What the JupyterLab extension costs: its size, JupyterLab's start, opening the panel, updating it, and how long a
step takes to the screen.

Measured in a real JupyterLab of an installed wheel, in Chromium, with the browser's clocks: the start with and without
the extension in turns; a run of 100,000 steps and 1,000 compiles, made of real records, whose messages are those that
the kernel sends; and a cell that trains.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from statistics import median, quantiles
from typing import Any

from tests.benchmarks import fresh, report
from tests.panel import recorded
from tpu_magics.runs.events import Event, Steps, Value

TITLE = "The JupyterLab extension"
STEPS, COMPILES = 100_000, 1_000
SIZE, START, OPENING, UPDATE = "bundle, gzipped", "JupyterLab's start, added", "the panel opens", "a live update"
CELL, PANEL = "from a step to the cell's output", "from a step to the side panel"
TARGETS = {SIZE: 100.0, START: 50.0, OPENING: 300.0, UPDATE: 16.0, CELL: 1000.0, PANEL: 1000.0}
UNITS = dict.fromkeys(TARGETS, "ms") | {SIZE: "kB"}

# JupyterLab announces itself on the window, if told to, before it has started.
ON_RESTORED = """
Object.defineProperty(window, 'jupyterapp', {
    configurable: true,
    set(app) {
        Object.defineProperty(window, 'jupyterapp', { value: app });
        app.restored.then(() => { window.restoredAt = performance.now(); });
    }
});
"""
# From the moment at which the panel is put into the page to the first frame after all of it is drawn and laid out.
OPEN = """async () => {
    const app = window.jupyterapp;
    const panel = [...app.shell.widgets('right')].find(each => each.id === 'tpu-magics-panel');
    panel.parent = null;
    await new Promise(done => setTimeout(done, 100));
    const begin = performance.now();
    app.shell.add(panel, 'right');
    app.shell.activateById('tpu-magics-panel');
    while (!panel.node.querySelector('.tpu-Run canvas') || panel.node.offsetHeight === 0) {
        await new Promise(requestAnimationFrame);
    }
    await new Promise(requestAnimationFrame);
    return performance.now() - begin;
}"""
# In the kernel: what it is to send, by number.
KERNEL = """
import json
from pathlib import Path
messages = json.loads(Path("messages.json").read_text())
kernel = get_ipython().kernel
comm = next(one for one in kernel.comm_manager.comms.values() if one.target_name == "tpu_magics")
def tell(number):
    kernel.session.send(kernel.iopub_socket, "comm_msg", {"comm_id": comm.comm_id, "data": messages[number]})
"""
ASKED = """code => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute(
    { code, silent: true, store_history: false }
).done.then(() => null)"""
# Its steps are further apart than updates, and at any time between two of them.
TRAINS = """
%%tpu_train --run-name seen
def train(steps={steps}):
    import json, pathlib, random, time
    import torch
    import torch_xla
    weights = torch.ones(8, device=torch_xla.device())
    done = []
    for step in range(steps):
        time.sleep(random.uniform(0.8, 1.8))
        weights = weights * 0.5
        torch_xla.sync()
        done.append(1000 * time.time())
    pathlib.Path("steps.json").write_text(json.dumps(done))
"""
# When each number of steps was on the screen first, in the cell's output and in the side panel.
WATCH = """() => {
    window.seen = { '.tpu-Output': {}, '.tpu-Panel': {} };
    const look = () => {
        for (const [where, seen] of Object.entries(window.seen)) {
            for (const figure of document.querySelectorAll(`${where} .tpu-Figure`)) {
                const steps = figure.querySelector('.tpu-Figure-value').textContent;
                if (figure.querySelector('dt').textContent === 'Steps' && !(steps in seen)) {
                    seen[steps] = null;
                    requestAnimationFrame(() => setTimeout(() => { seen[steps] = Date.now(); }));
                }
            }
        }
    };
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
# Two frames: what an update sets off has been drawn.
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 20))))"


def in_browser(starts: int, openings: int, updates: int, steps: int, compiles: int, seen: int) -> dict[str, Any]:
    """In a fresh process: kB of the bundle, and milliseconds of each kind."""
    from tests.browser.installed import build, install
    from tests.browser.jupyter import chromium, running_server

    with fresh.scratch_folder() as folder:
        wheel = build(folder / "built")
        ours, bare = install(wheel, folder / "with"), install(wheel, folder / "without")
        size = sum(len(gzip.compress(path.read_bytes())) for path in ours.shared.rglob("*.js"))
        shutil.rmtree(bare.shared)
        with chromium() as browser, running_server(ours) as server, running_server(bare) as other:
            added = [_start(browser, server) - _start(browser, other) for _ in range(starts)]
            opened, updated = _panel(browser, server, openings, updates, steps, compiles)
            in_cell, in_panel = _seen(browser, server, seen)
    return {SIZE: [size / 1000], START: added, OPENING: opened, UPDATE: updated, CELL: in_cell, PANEL: in_panel}


def _start(browser: Any, server: Any) -> float:
    """Milliseconds from the navigation until JupyterLab is restored, in a page without a cache."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(ON_RESTORED)
    page.goto(f"{server.url}lab?token={server.token}")
    page.wait_for_function("window.restoredAt !== undefined", timeout=60_000)
    took = float(page.evaluate("window.restoredAt"))
    context.close()
    return took


def _panel(
    browser: Any, server: Any, openings: int, updates: int, steps: int, compiles: int
) -> tuple[list[float], list[float]]:
    from tests.browser.cells import LOAD
    from tests.browser.jupyter import Notebook, write_notebook

    run = recorded.long_run(server.folder / "runs", steps, compiles)
    messages = list(_messages(run, updates, steps, compiles))
    (server.folder / "messages.json").write_text(json.dumps(messages))
    write_notebook(server.folder / "it.ipynb", LOAD, KERNEL.strip())
    page = browser.new_page(viewport={"width": 1500, "height": 900})
    notebook = Notebook(server, page, "it.ipynb")
    notebook.await_kernel()
    notebook.run_all()
    notebook.status.wait_for(timeout=60_000)
    page.evaluate(ASKED, "tell(0)")  # the run
    notebook.show_panel()
    notebook.panel.locator(".tpu-Run canvas").first.wait_for()
    opened = [float(page.evaluate(OPEN)) for _ in range(openings)]
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
    return opened, [_update(page, metrics, number) for number in range(1, len(messages))]


def _seen(browser: Any, server: Any, steps: int) -> tuple[list[float], list[float]]:
    """Milliseconds from the end of a step in the worker until its number is on the screen; the first two compile, and
    are left out."""
    from tests.browser.cells import LOAD
    from tests.browser.jupyter import Notebook, write_notebook

    folder = server.folder / "seen"
    write_notebook(folder / "it.ipynb", LOAD, TRAINS.replace("{steps}", str(steps)).strip())
    page = browser.new_page(viewport={"width": 1500, "height": 900})
    notebook = Notebook(server, page, "seen/it.ipynb")
    notebook.await_kernel()
    notebook.run_cell(0)
    notebook.status.wait_for(timeout=60_000)
    notebook.show_panel()
    page.evaluate(WATCH)
    notebook.run_cell(1)
    notebook.state.filter(has_text="done").wait_for(timeout=60_000 + 2_000 * steps)
    done, seen = json.loads((folder / "steps.json").read_text()), page.evaluate("Object.values(window.seen)")
    page.close()
    numbers = range(3, steps)
    cell, panel = ([each[str(one)] - done[one - 1] for one in numbers if each.get(str(one))] for each in seen)
    return cell, panel


def _update(page: Any, metrics: Any, number: int) -> float:
    """Milliseconds for which the page was at work, less those for a kernel that was asked and told nothing."""

    def worked(code: str) -> float:
        begin = _busy(metrics)
        page.evaluate(ASKED, code)
        page.evaluate(DRAWN)
        return _busy(metrics) - begin

    idle = worked("pass")
    return max(0.0, worked(f"tell({number})") - idle)


def _busy(metrics: Any) -> float:
    """Milliseconds of processor time that the page's main thread has taken: script, style, layout and painting."""
    values = {one["name"]: one["value"] for one in metrics.send("Performance.getMetrics")["metrics"]}
    return float(values["TaskDuration"]) * 1000


def _messages(run: recorded.Recorded, updates: int, steps: int, compiles: int) -> Iterator[dict[str, Any]]:
    """What the kernel sends: the run, then an update for each ten further steps, every fifth with a compile."""
    from tpu_magics.magics.lab import as_message
    from tpu_magics.panel.feed import Feed
    from tpu_magics.panel.json_values import plain
    from tpu_magics.panel.run_state import RunModel

    model = RunModel(run.files)
    model.refresh()
    view = model.view()
    feed = Feed(view.id)
    yield plain(as_message(feed.begin(view)))
    for at in range(1, updates + 1):
        run.write(*_ten_steps(at, steps, compiles))
        model.refresh()
        message = feed.update(model.view())
        assert message is not None, "an update has something to tell"
        yield plain(as_message(message))


def _ten_steps(at: int, steps: int, compiles: int) -> Iterator[Event]:
    """What a worker records of the ten steps number `at` after all that the run has."""
    t, total = recorded.CREATED + 100_000 + at, steps + 10 * at
    yield Steps(t, 0, total=total, n=10, seconds=1.0)
    yield from (Value(t, 0, name, 3 / at, total, 10, low=0.0, high=3 / at) for name in ("loss", "lr", "accuracy"))
    if at % 5 == 0:
        yield recorded.recompile(t, compiles + at // 5, 600 + at, step=total)


def measure(
    starts: int = 15,
    openings: int = 11,
    updates: int = 50,
    steps: int = STEPS,
    compiles: int = COMPILES,
    seen: int = 40,
) -> list[dict[str, Any]]:
    """A row for each of TARGETS."""
    arguments = (starts, openings, updates, steps, compiles, seen)
    found: dict[str, list[float]] = fresh.call(__name__, "in_browser", *arguments, timeout=1200)
    return [row(what, values) for what, values in found.items()]


def row(what: str, values: list[float]) -> dict[str, Any]:
    several = len(values) > 1
    return {
        "what": what,
        "unit": UNITS[what],
        "median": median(values),
        "90th percentile": quantiles(values, n=10, method="inclusive")[-1] if several else None,
        "most": max(values) if several else None,
        "over the target": sum(value >= TARGETS[what] for value in values) if several else None,
        "times measured": len(values),
    }


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether the medians meet them; how often a single time did not."""
    said = [
        f"A run of {STEPS:,} steps and {COMPILES:,} compiles, in headless Chromium.",
        "The start: from the navigation until JupyterLab is restored, in turns with and without the extension, without "
        "a cache.",
        "An update: the processor time of the page's main thread, for script, style, layout and painting.",
        "From a step to the screen: from the end of the step in the worker until its number has been painted.",
    ]
    for each in rows:
        what, value, over = each["what"], each["median"], each["over the target"]
        told = f"{value:.3g} {each['unit']}"
        if over is not None:
            told = f"the median, {told}; {over} of {each['times measured']} took longer"
        target = f"{TARGETS[what]:g} {each['unit']}"
        said.append(f"Target for {what}: under {target}: {report.met(value < TARGETS[what])} ({told}).")
    return said
