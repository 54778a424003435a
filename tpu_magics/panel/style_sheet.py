"""Inline styles as classes of one style sheet: two thirds of a page's HTML are styles, and a live panel sends it again
and again. Texts are escaped, so no style is ever found in them.
"""

from __future__ import annotations

import re
import zlib

SHORTEST = 12  # characters of a style that is worth a class
MOST = 100  # classes; further styles stay in their tags
WORTH = 3_000  # characters of styles sent in their tags, after which the sheet grows: about what it costs to send it
_STYLE = re.compile(r' style="([^"]*)"(/?)')


class StyleSheet:
    """`html` is the `<style>` that has to be there before the html that uses it. `base`: rules that it begins with;
    `known`: html whose styles have classes from the start."""

    def __init__(self, base: str, known: str) -> None:
        self._base = base
        self._names: dict[str, str] = {}
        self._spent = {found[1]: len(found[1]) for found in _STYLE.finditer(known)}
        self.html = ""
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
            return f" class={self._names[style]}{' /' if found[2] else ''}"
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
        self.html = f"<style>{self._base}{''.join(rules)}</style>"
