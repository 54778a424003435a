"""`tpu-magics server`: findings in an editor, through the Language Server Protocol over standard input and output.

Diagnostics while one types, code actions for fixes and noqa comments, and the rule's documentation on hover; in Python
files, in the notebooks of an editor, whose cells are one program, and in the documents that jupyterlab-lsp makes of a
notebook.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from tpu_magics import __version__
from tpu_magics.check import fixes
from tpu_magics.check.cells import CodeCell, cell_of
from tpu_magics.check.config import CheckConfig, ConfigFinder, UsageError, all_rules
from tpu_magics.check.engine import check_cells_of_file
from tpu_magics.check.finding import Finding
from tpu_magics.check.noqa import with_noqa
from tpu_magics.check.rule import as_markdown, rule_url

SOURCE = "tpu_magics"
PAUSE = 0.2  # seconds without a change before a text is checked
_NOTEBOOKS = types.NotebookDocumentSyncOptions(
    notebook_selector=[
        types.NotebookDocumentFilterWithCells(notebook="*", cells=[types.NotebookCellLanguage(language="python")])
    ]
)
FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.{SOURCE}"


@dataclass
class Checked:
    """A document as it was checked: its cell, all cells of its program, the findings in it, and its settings."""

    cell: CodeCell
    cells: Sequence[CodeCell]
    findings: list[Finding]
    config: CheckConfig

    @cached_property
    def fixed(self) -> str | None:
        """The text with all safe fixes; None where there are none."""
        if not any(one.edits and not one.unsafe for one in self.findings):
            return None
        done = fixes.fix(self.cells, lambda cells: check_cells_of_file(cells, self.config))
        return done.changes.get(list(self.cells).index(self.cell))


class CheckServer(LanguageServer):
    """`checked`: by the address of each document that is open; `cells`: the documents of each notebook."""

    def __init__(self) -> None:
        super().__init__("tpu-magics", __version__, notebook_document_sync=_NOTEBOOKS)
        self.rules = all_rules()
        self.checked: dict[str, Checked] = {}
        self.cells: dict[str, list[str]] = {}

    # -- checking -----------------------------------------------------------------------------------------------------

    async def changed(self, uri: str, version: int | None) -> None:
        """Check a document once nothing has changed for a while."""
        await asyncio.sleep(PAUSE)
        document = self.workspace.text_documents.get(uri)
        if document is not None and document.version == version:
            self.check([uri])

    async def notebook_changed(self, uri: str, version: int | None) -> None:
        await asyncio.sleep(PAUSE)
        notebook = self.workspace.get_notebook_document(notebook_uri=uri)
        if notebook is not None and notebook.version == version:
            self.check_notebook(uri)

    def check_notebook(self, uri: str) -> None:
        notebook = self.workspace.get_notebook_document(notebook_uri=uri)
        code = [one for one in notebook.cells if one.kind == types.NotebookCellKind.Code] if notebook else []
        documents = [one.document for one in code]
        self.closed([one for one in self.cells.get(uri, ()) if one not in documents])
        self.cells[uri] = documents
        self.check(documents, uri)

    def check(self, uris: Sequence[str], home: str = "") -> None:
        """Check the documents of one program, and publish what is found in each."""
        path = to_fs_path(home or uris[0]) if uris else None
        name = path or (home or next(iter(uris), ""))
        texts = [self.workspace.get_text_document(uri).source for uri in uris]
        interactive = bool(home) or name.endswith(".ipynb")
        cells = [cell_of(text, name, number if interactive else None) for number, text in enumerate(texts, 1)]
        config = self._config(path)
        findings = [] if config.excludes(name) else check_cells_of_file(cells, config)
        for uri, cell in zip(uris, cells, strict=True):
            own = [one for one in findings if one.cell == cell.number]
            self.checked[uri] = Checked(cell, cells, own, config)
            diagnostics = [self._diagnostic(uri, one) for one in own]
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, diagnostics))

    def _config(self, path: str | None) -> CheckConfig:
        try:
            return ConfigFinder(self.rules).of(path) if path is not None else CheckConfig(self.rules)
        except UsageError as error:
            self.window_show_message(types.ShowMessageParams(types.MessageType.Error, str(error)))
            return CheckConfig(self.rules)

    def closed(self, uris: Sequence[str]) -> None:
        for uri in uris:
            if self.checked.pop(uri, None) is not None:
                self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    # -- in the words of the protocol ---------------------------------------------------------------------------------

    def _diagnostic(self, uri: str, finding: Finding) -> types.Diagnostic:
        rule = self.rules.find(finding.code)
        url = "" if rule is None else rule_url(rule)
        return types.Diagnostic(
            self.place(uri, finding),
            " ".join(filter(None, (finding.message, finding.why, finding.fix))),
            types.DiagnosticSeverity.Information if finding.advice else types.DiagnosticSeverity.Warning,
            finding.code,
            types.CodeDescription(url) if url else None,
            SOURCE,
        )

    def place(self, uri: str, finding: Finding) -> types.Range:
        return self.range(uri, (finding.line, finding.column - 1), (finding.end_line, finding.end_column - 1))

    def range(self, uri: str, start: tuple[int, int], end: tuple[int, int]) -> types.Range:
        """Lines from 1 and columns in characters, as the client counts them."""
        document = self.workspace.get_text_document(uri)
        places = (types.Position(line - 1, column) for line, column in (start, end))
        return self.workspace.position_codec.range_to_client_units(document.lines, types.Range(*places))

    def edit(self, uri: str, edits: Sequence[Any]) -> types.WorkspaceEdit:
        """Edits of a finding as one change of its document."""
        changes = [types.TextEdit(self.range(uri, one.start, one.end), one.text) for one in edits]
        return types.WorkspaceEdit(changes={uri: changes})

    def whole(self, uri: str, text: str) -> types.WorkspaceEdit:
        """Another text for a document."""
        lines = self.checked[uri].cell.lines
        return types.WorkspaceEdit(
            changes={uri: [types.TextEdit(self.range(uri, (1, 0), (len(lines), len(lines[-1]))), text)]}
        )

    def actions(self, params: types.CodeActionParams) -> Iterator[types.CodeAction]:
        uri = params.text_document.uri
        if (checked := self.checked.get(uri)) is None:
            return
        wanted = params.context.only
        here = [one for one in checked.findings if _touches(self.place(uri, one), params.range)]
        if _is_wanted(types.CodeActionKind.QuickFix.value, wanted):
            for finding in here:
                yield from self._quick_fixes(uri, checked, finding)
        if _is_wanted(FIX_ALL, wanted) and checked.fixed is not None:
            yield types.CodeAction("Fix all of tpu_magics", FIX_ALL, edit=self.whole(uri, checked.fixed))

    def _quick_fixes(self, uri: str, checked: Checked, finding: Finding) -> Iterator[types.CodeAction]:
        diagnostics, kind = [self._diagnostic(uri, finding)], types.CodeActionKind.QuickFix
        if finding.edits:
            title = f"{finding.code}: fix it" + (" (may change results)" if finding.unsafe else "")
            edit = self.edit(uri, finding.edits)
            yield types.CodeAction(title, kind, diagnostics, is_preferred=not finding.unsafe, edit=edit)
        text = with_noqa(checked.cell, [finding])
        if text != checked.cell.text:
            title = f"{finding.code}: suppress it here (# noqa)"
            yield types.CodeAction(title, kind, diagnostics, edit=self.whole(uri, text))

    def hover(self, params: types.HoverParams) -> types.Hover | None:
        uri, place = params.text_document.uri, params.position
        for finding in self.checked[uri].findings if uri in self.checked else ():
            at = self.place(uri, finding)
            if _touches(at, types.Range(place, place)) and (rule := self.rules.find(finding.code)) is not None:
                return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, as_markdown(rule)), at)
        return None


def _is_wanted(kind: str, wanted: Sequence[types.CodeActionKind | str] | None) -> bool:
    """Whether an editor asks for actions of this kind: for all, or for a kind that it is one of."""
    asked = [one.value if isinstance(one, types.CodeActionKind) else one for one in wanted or ()]
    return wanted is None or any(kind == one or kind.startswith(f"{one}.") for one in asked)


def _touches(one: types.Range, other: types.Range) -> bool:
    return not (one.end < other.start or other.end < one.start)


def server() -> CheckServer:
    """The server with its handlers."""
    result = CheckServer()
    feature = result.feature

    @feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        result.check([params.text_document.uri])

    @feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: types.DidChangeTextDocumentParams) -> None:
        await result.changed(params.text_document.uri, params.text_document.version)

    @feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        result.closed([params.text_document.uri])

    @feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def notebook_opened(params: types.DidOpenNotebookDocumentParams) -> None:
        result.check_notebook(params.notebook_document.uri)

    @feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    async def notebook_changed(params: types.DidChangeNotebookDocumentParams) -> None:
        await result.notebook_changed(params.notebook_document.uri, params.notebook_document.version)

    @feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def notebook_closed(params: types.DidCloseNotebookDocumentParams) -> None:
        result.closed([one.uri for one in params.cell_text_documents])
        result.cells.pop(params.notebook_document.uri, None)

    @feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions([types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]),
    )
    def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        return list(result.actions(params))

    @feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        return result.hover(params)

    return result


def main() -> None:
    """Serve until the editor ends it."""
    server().start_io()
