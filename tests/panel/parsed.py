"""A piece of HTML as a browser reads it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"br", "wbr", "path", "circle", "rect"}


class Parsed(HTMLParser):
    """Tags, attributes, text, and the cells of tables by row; that every tag is closed, in order, is asserted."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self._words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, self._open

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._words).split())

    @property
    def cells(self) -> list[str]:
        return [cell for row in self.rows for cell in row]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self._words.append(data)
        if self._open and self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
