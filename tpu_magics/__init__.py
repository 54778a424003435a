"""tpu_magics: train on a TPU from a notebook."""

from __future__ import annotations

__version__ = "0.1.0"
