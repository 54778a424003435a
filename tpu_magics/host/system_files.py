"""Read small files of /sys, /proc and /dev that may be missing, unreadable or gone a moment later."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> str | None:
    """The file's text without surrounding white space; None where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


def names(folder: Path) -> list[str]:
    """Names in `folder`, sorted; none where it cannot be listed."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
