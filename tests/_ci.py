"""A pytest plugin: in CI nothing may be skipped. Loaded with `-p tests._ci`; without CI=true it does nothing.

A test that is skipped for want of a tool (a browser, a notebook's kernel) tells nothing, and in CI nobody sees that.
What a host's libtpu or torch_xla cannot do is none of these: what tests/hosts/lacking.py lists may be skipped there.
"""

from __future__ import annotations

import os

import pytest

from tests.hosts import lacking

STATES = ("skipped", "xpassed")


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1")


def offenders(config: pytest.Config) -> list[str]:
    """One line for each test that was skipped, or that passes though it is marked as failing."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return []  # a worker of pytest-xdist: its controller hears of every test
    seen = [(report, state) for state in STATES for report in reporter.stats.get(state, ())]
    return [f"{report.nodeid}: {state}" for report, state in seen if not lacking.explains(report)]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if in_ci() and not session.exitstatus and offenders(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = offenders(config) if in_ci() else []
    if found:
        terminalreporter.section("not allowed in CI", red=True)
        for line in found:
            terminalreporter.line(line)
