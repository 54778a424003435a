"""What the tests of both folders share."""

from tests.backends.torch.conftest import libraries, outcomes, pytest_generate_tests

__all__ = ["libraries", "outcomes", "pytest_generate_tests"]
