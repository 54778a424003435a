"""What several tests of this folder and of torch_xla's share."""

from __future__ import annotations

import pytest

from tests import framework
from tests.backends.torch import forked_scenarios


@pytest.fixture(scope="session")
def libraries() -> None:
    """Imported once in this process: a worker is a fork of it."""
    import accelerate  # noqa: F401
    import transformers.trainer  # noqa: F401

    framework.import_framework()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `scenario` runs once for each scenario of its file."""
    if "scenario" in metafunc.fixturenames:
        metafunc.parametrize("scenario", forked_scenarios.names(vars(metafunc.module)))


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> dict[str, str]:
    """What became of the scenarios of the test's file, which run once: name -> "" or what went wrong."""
    return forked_scenarios.outcomes(request.module.__file__)
