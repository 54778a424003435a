"""The mime bundle that a run leaves in a notebook: text, HTML, and a record for the JupyterLab extension."""

from __future__ import annotations

import contextlib
from typing import Any

from tpu_magics.panel.model_view import RunView
from tpu_magics.panel.page import to_html, to_text
from tpu_magics.panel.protocol import MIME_TYPE
from tpu_magics.panel.run_json import SAVED, record


def to_bundle(view: RunView) -> dict[str, Any]:
    """The run as a mime bundle."""
    bundle: dict[str, Any] = {"text/plain": to_text(view), "text/html": to_html(view)}
    with contextlib.suppress(Exception):  # whatever a record holds, the html is shown
        bundle[MIME_TYPE] = record(view, SAVED)
    return bundle
