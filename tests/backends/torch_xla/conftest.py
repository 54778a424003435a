"""What several tests of the backends share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def libraries() -> None:
    """Imported once in this process: a worker is a fork of it."""
    import accelerate  # noqa: F401
    import torch_xla  # noqa: F401
    import transformers.trainer  # noqa: F401
