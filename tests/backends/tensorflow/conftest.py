"""What the tests of this folder share."""

from __future__ import annotations

from typing import Any

import pytest

from tests import overlay


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of the program that stands beside the test's file: its `PROGRAM`, run with an empty folder."""
    return overlay.report(request.module.PROGRAM, tmp_path_factory.mktemp("found"))  # type: ignore[no-any-return]
