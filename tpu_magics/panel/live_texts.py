"""Texts of a live page that change all the time: they are sent as CSS variables, in a sixth of the page's bytes.

A page is sent whole, with `<span style='--t:var(--name,"1,234")'>` in place of each text that changed before; from then
on `<style>.tpu-magics-live{--name:"1,240"}</style>` changes all of them at once. What differs in more than such texts
and the drawings is sent whole.
"""

from __future__ import annotations

import re
import secrets
from html import unescape

CLASS = "tpu-magics-live"  # of the box that all widgets of a panel stand in
RULE = f".{CLASS} .tpu-magics-text::before{{content:var(--t)}}"  # what the page's style sheet has to say of them
MOST = 60  # texts of a page that are variables
_TOKEN = re.compile(r"<[^>]*>|[^<]+")
_SHARE = re.compile(r'(?<= style="width:)\d+%')  # how far a bar is
_HINTS = re.compile(r' (?:aria-\w+|title)="[^"]*"')  # attributes that may be as old as the drawings
_SPECIAL = re.compile(r"""["'\\<>&{}\x00-\x1f\x7f-\x9f\u2028\u2029]""")


class LiveTexts:
    """The texts of one widget's html."""

    def __init__(self) -> None:
        self._prefix = f"--t{secrets.token_hex(2)}"  # two panels of one notebook have variables of their own
        self._nth = 0
        self._sent: list[str] = []  # tokens of the page as it was sent whole
        self._often: set[int] = set()  # which of them have changed before
        self._slots: set[int] = set()  # which of them are variables in it

    def whole(self, html: str) -> str:
        """The html to be sent, with variables in it. It means the same without any change of them."""
        tokens = _tokens(html)
        self._compare(tokens)
        self._nth += 1
        self._sent, self._slots = tokens, set(self._often)
        return "".join(self._slot(at, token) if at in self._slots else token for at, token in enumerate(tokens))

    def changes(self, html: str) -> str | None:
        """The `<style>` after which the page that was sent says what `html` does; None: it has to be sent whole."""
        tokens = _tokens(html)
        changed = self._compare(tokens)
        if changed is None or changed - self._slots:
            return None
        values = "".join(f"{self._name(at)}:{_value(tokens[at])};" for at in sorted(changed))
        return f"<style>.{CLASS}{{{values}}}</style>"

    def _compare(self, tokens: list[str]) -> set[int] | None:
        """Which tokens differ in their text from those sent; None: something else differs."""
        pairs = list(zip(self._sent, tokens, strict=False))
        if len(tokens) != len(self._sent) or any(_frame(old) != _frame(new) for old, new in pairs):
            self._often = set()
            return None
        changed = {at for at, (old, new) in enumerate(pairs) if old != new and _is_text(new)}
        if len(self._often | changed) > MOST:
            return None
        self._often |= changed
        return changed

    def _slot(self, at: int, token: str) -> str:
        variable = f"var({self._name(at)},{_value(token)})"
        if token.startswith("<"):
            return _SHARE.sub(lambda _: variable, token)
        return f"<span class=tpu-magics-text style='--t:{variable}'></span>"

    def _name(self, at: int) -> str:
        return f"{self._prefix}{self._nth}-{at}"


def _tokens(html: str) -> list[str]:
    """Tags and texts; a drawing is one."""
    tokens: list[str] = []
    depth = 0
    for token in _TOKEN.findall(html):
        if depth:
            tokens[-1] += token
        else:
            tokens.append(token)
        depth += token.startswith("<svg") and not token.endswith("/>")
        depth -= token == "</svg>"
    return tokens


def _is_text(token: str) -> bool:
    return not token.startswith("<") or bool(_SHARE.search(token))


def _frame(token: str) -> str:
    """What has to be the same: all but numbers, for a word that changes is a state, which is to be read out."""
    if not token.startswith("<"):
        return "" if any(map(str.isdigit, token)) else token
    return "<svg>" if token.startswith("<svg") else _HINTS.sub("", _SHARE.sub("", token))


def _value(token: str) -> str:
    """A text as a string of CSS, in which nothing can end the string, the sheet or an attribute."""
    if share := _SHARE.search(token):
        return share[0]
    return '"' + _SPECIAL.sub(lambda found: f"\\{ord(found[0]):x} ", unescape(token)) + '"'
