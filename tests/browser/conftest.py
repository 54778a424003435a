"""Fixtures of the tests in a browser: one wheel, one server, one browser for all of them, a folder for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.installed import Environment, built, install

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="package")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    return install(built(tmp_path_factory)[1], tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="package")
def server(installed: Environment) -> Iterator[Any]:
    from tests.browser.jupyter import running_server

    with running_server(installed) as started:
        yield started


@pytest.fixture(scope="package")
def browser(installed: Environment) -> Iterator[Any]:
    from tests.browser.jupyter import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of its own. Where the test fails, a picture of it is kept beside its other files."""
    from tests.browser.jupyter import opened_page

    with opened_page(browser) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _folder_for_a_picture(tmp_path: Path) -> None:
    """See below."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """What the page looks like, and what it said, where a test has failed."""
    report = yield
    given = getattr(item, "funcargs", {})
    shown = given.get("page") or getattr(given.get("it"), "page", None)
    if report.when == "call" and report.failed and shown is not None and not shown.is_closed():
        picture = given["tmp_path"] / "failed.png"
        shown.screenshot(path=picture)
        report.sections.append(("the page", "\n".join([str(picture), *shown.said[-30:]])))
    return report


@pytest.fixture
def notebook(server: Any, page: Any, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Opens a notebook of these cells, in a folder that is the test's own."""
    from tests.browser.jupyter import Notebook, write_notebook

    def open_it(*cells: str, name: str = "it.ipynb", into: Any = None, **options: Any) -> Any:
        path = f"{request.node.name.replace('[', '-').replace(']', '')}/{name}"
        if cells:
            write_notebook(server.folder / path, *cells, **options)
        return Notebook(server, into or page, path)

    return open_it
