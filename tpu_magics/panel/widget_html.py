"""The panel's HTML, made small for repeated sending.

Two thirds of the HTML are inline styles, which a saved notebook needs. A live panel replaces each style by a class of
one style sheet. Texts are escaped, so no style or tag is ever found in them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

SHORTEST = 12  # characters of a style that is worth a class
MOST = 100  # classes; further styles stay in their tags
CLASS = "tpu-magics-live"  # of the box that all widgets stand in
WORTH = 3_000  # characters of styles sent in their tags, after which the sheet grows: about what it costs to send it

# Front ends give widgets lines of the height of a button, and letters that are smaller than those of outputs.
_BASE = (
    f".{CLASS} .widget-html-content{{min-width:0;line-height:1.45;font-size:var(--jp-content-font-size1,14px)}}"
    f".{CLASS}>.widget-html:first-child{{display:none}}"  # the one that holds this
)
_STYLE = re.compile(r' style="([^"]*)"')
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)([^>]*)>")
_VOID = frozenset({"br", "hr", "img", "wbr", "col", "input"})


class Sheet:
    """Styles by class. `html` is the `<style>` that has to be there before the html that uses it."""

    def __init__(self, known: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        self._spent: dict[str, int] = {}
        self.html = ""
        for html in known:
            for found in _STYLE.finditer(html):
                self._spent[found[1]] = len(found[1])
        self._grow()

    def lean(self, html: str) -> str:
        """The html with classes in place of styles. A style that was not known stays; if it comes often, the sheet
        grows."""
        if sum(self._spent.values()) > WORTH:
            self._grow()
        return _STYLE.sub(self._class, html)

    def _class(self, found: re.Match[str]) -> str:
        style = found[1]
        if style in self._names:
            return f" class={self._names[style]}"
        if len(style) >= SHORTEST:
            self._spent[style] = self._spent.get(style, 0) + len(style)
        return found[0]

    def _grow(self) -> None:
        """A class's name is made from its style: two panels in one notebook mean the same by it."""
        taken = set(self._names.values())
        for style in self._spent:
            name = f"m{zlib.crc32(style.encode()) & 0xFFFFF:x}"
            if len(style) >= SHORTEST and len(self._names) < MOST and name not in taken:
                self._names[style] = name
                taken.add(name)
        self._spent = {}
        # A rule weighs as one with an id: nearly as much as a style in a tag.
        rules = (f".{name}:is(#_,*){{{style}}}" for style, name in self._names.items())
        self.html = f"<style>{_BASE}{''.join(rules)}</style>"


def pieces(html: str) -> list[str]:
    """The outermost elements of the html, each with the text before it; together they are the html."""
    found, depth, start = [], 0, 0
    for tag in _TAG.finditer(html):
        closing, name, rest = tag.groups()
        if name.lower() not in _VOID and not rest.endswith("/"):
            depth += -1 if closing else 1
        if depth == 0:
            found.append(html[start : tag.end()])
            start = tag.end()
    if start < len(html):
        found.append(html[start:])
    return found


def fixed_pieces(html: str, count: int) -> list[str]:
    """Exactly `count` pieces: the last one holds all that is left."""
    found = pieces(html)
    return [*found[: count - 1], *[""] * (count - 1 - len(found)), "".join(found[count - 1 :])]
