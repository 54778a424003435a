"""The server for editors, driven by a real client over standard input and output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tpu_magics.check.server import FIX_ALL

pytestmark = pytest.mark.process
TEXT = """import torch
import torch_xla


def train(model, loader):
    for x in loader:
        labels = torch.zeros(4).to("xla")
        labels[labels == 0] = -100  # 🐱
        loss = model(labels); print("🐱", loss.item())
        loss.backward()
        torch_xla.sync()
"""


class Editor(LanguageClient):
    """A client that keeps what the server publishes, the newest of each document."""

    def __init__(self) -> None:
        super().__init__("editor", "1")
        self.published: dict[str, list[types.Diagnostic]] = {}
        self.messages: list[str] = []
        self.news = asyncio.Event()

        @self.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: types.PublishDiagnosticsParams) -> None:
            self.published[params.uri] = list(params.diagnostics)
            self.news.set()

        @self.feature(types.WINDOW_SHOW_MESSAGE)
        def told(params: types.ShowMessageParams) -> None:
            self.messages.append(params.message)

    def open(self, uri: str, text: str, version: int = 1) -> None:
        document = types.TextDocumentItem(uri, types.LanguageKind.Python, version, text)
        self.text_document_did_open(types.DidOpenTextDocumentParams(document))

    def change(self, uri: str, text: str, version: int) -> None:
        self.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, uri),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def codes(self, uri: str, *wanted: str) -> None:
        """Wait until these are the codes that are published for a document."""
        async with asyncio.timeout(60):
            while sorted(str(one.code) for one in self.published.get(uri, ())) != sorted(wanted):
                self.news.clear()
                await self.news.wait()

    async def actions(
        self, uri: str, at: types.Range, only: list[types.CodeActionKind | str] | None = None
    ) -> dict[str, types.CodeAction]:
        context = types.CodeActionContext([], only=only)
        params = types.CodeActionParams(types.TextDocumentIdentifier(uri), at, context)
        found = await self.text_document_code_action_async(params) or []
        return {one.title: one for one in found if isinstance(one, types.CodeAction)}


@asynccontextmanager
async def editor(encoding: types.PositionEncodingKind) -> AsyncIterator[Editor]:
    client = Editor()
    await client.start_io(sys.executable, "-m", "tpu_magics", "server")
    general = types.GeneralClientCapabilities(position_encodings=[encoding])
    started = await client.initialize_async(types.InitializeParams(types.ClientCapabilities(general=general)))
    assert started.server_info is not None and started.server_info.name == "tpu-magics"
    client.initialized(types.InitializedParams())
    try:
        yield client
    finally:
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()


def with_editor(
    steps: Callable[[Editor], Coroutine[Any, Any, None]],
    encoding: types.PositionEncodingKind = types.PositionEncodingKind.Utf16,
) -> None:
    async def run() -> None:
        async with editor(encoding) as client:
            await steps(client)

    asyncio.run(run())


def applied(text: str, uri: str, action: types.CodeAction) -> str:
    """The text after an action, whose places are in UTF-16 units."""
    assert action.edit is not None and action.edit.changes is not None
    lines = [line.encode("utf-16-le") for line in text.split("\n")]
    whole = "\n".encode("utf-16-le").join(lines)

    def offset(place: types.Position) -> int:
        return sum(len(line) + 2 for line in lines[: place.line]) + 2 * place.character

    for change in sorted(action.edit.changes[uri], key=lambda one: offset(one.range.start), reverse=True):
        new = change.new_text.encode("utf-16-le")
        whole = whole[: offset(change.range.start)] + new + whole[offset(change.range.end) :]
    return whole.decode("utf-16-le")


def test_findings_their_fixes_and_their_rules(tmp_path: Path) -> None:
    uri = (tmp_path / "train.py").as_uri()

    async def steps(client: Editor) -> None:
        client.open(uri, TEXT)
        await client.codes(uri, "TPU202", "TPU102")
        masked, read = sorted(client.published[uri], key=lambda one: one.range.start.line)
        assert (masked.source, masked.severity) == ("tpu_magics", types.DiagnosticSeverity.Warning)
        assert "The elements that the assignment to labels[labels == 0] changes" in masked.message
        assert (masked.range.start, read.range.start) == (types.Position(7, 8), types.Position(8, 42))

        actions = await client.actions(uri, masked.range)
        fixed = applied(TEXT, uri, actions["TPU202: fix it"])
        assert fixed == TEXT.replace("labels[labels == 0] = -100", "labels.masked_fill_(labels == 0, -100)")
        assert actions["TPU202: fix it"].is_preferred
        hushed = applied(TEXT, uri, actions["TPU202: suppress it here (# noqa)"])
        assert "labels[labels == 0] = -100  # 🐱  # noqa: TPU202\n" in hushed
        everything = await client.actions(uri, types.Range(types.Position(0, 0), types.Position(0, 0)))
        assert applied(TEXT, uri, everything["Fix all of tpu_magics"]) == fixed
        for kind in (FIX_ALL, types.CodeActionKind.SourceFixAll, types.CodeActionKind.Source):
            assert list(await client.actions(uri, masked.range, [kind])) == ["Fix all of tpu_magics"]
        assert not await client.actions(uri, masked.range, [types.CodeActionKind.Refactor])

        place = types.HoverParams(types.TextDocumentIdentifier(uri), masked.range.start)
        hover = await client.text_document_hover_async(place)
        assert hover is not None and isinstance(hover.contents, types.MarkupContent)
        assert "TPU202 boolean-mask-assignment" in hover.contents.value and "**Use instead**" in hover.contents.value
        nothing = types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(0, 0))
        assert await client.text_document_hover_async(nothing) is None

        client.change(uri, hushed, 2)
        await client.codes(uri, "TPU102")
        client.change(uri, "def f(:\n", 3)
        await client.codes(uri, "TPU001")
        client.change(uri, "x = 1\n", 4)
        await client.codes(uri)
        client.change(uri, TEXT, 5)
        await client.codes(uri, "TPU202", "TPU102")
        client.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri)))
        await client.codes(uri)

    with_editor(steps)


@pytest.mark.parametrize(("encoding", "column"), [("utf-8", 44), ("utf-16", 42), ("utf-32", 41)])
def test_columns_are_counted_as_the_editor_counts(tmp_path: Path, encoding: str, column: int) -> None:
    uri = (tmp_path / "train.py").as_uri()

    async def steps(client: Editor) -> None:
        client.open(uri, TEXT)
        await client.codes(uri, "TPU202", "TPU102")
        assert {one.range.start.character for one in client.published[uri]} == {8, column}

    with_editor(steps, types.PositionEncodingKind(encoding))


def test_the_table_of_the_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.tpu_magics]\nselect = ['shapes']\nexclude = ['old']\n")
    uri = (tmp_path / "train.py").as_uri()

    async def steps(client: Editor) -> None:
        client.open(uri, TEXT)
        await client.codes(uri, "TPU202")
        client.open(excluded := (tmp_path / "old" / "train.py").as_uri(), TEXT)
        await client.codes(excluded)
        (tmp_path / "pyproject.toml").write_text("[tool.tpu_magics]\nselect = ['nowhere']\n")
        client.change(uri, TEXT + "\n", 2)
        await client.codes(uri, "TPU202", "TPU102")
        assert any("no rule matches 'nowhere'" in one for one in client.messages)

    with_editor(steps)


def test_the_cells_of_a_notebook_are_one_program(tmp_path: Path) -> None:
    notebook = (tmp_path / "train.ipynb").as_uri()
    cells = [f"vscode-notebook-cell:{tmp_path}/train.ipynb#{number}" for number in range(3)]
    sources = ["%load_ext tpu_magics\nimport torch, torch_xla", "# text", TEXT.partition("\n\n\n")[2]]
    kinds = [types.NotebookCellKind.Code, types.NotebookCellKind.Markup, types.NotebookCellKind.Code]

    async def steps(client: Editor) -> None:
        document = types.NotebookDocument(
            notebook, "jupyter-notebook", 1, [types.NotebookCell(*one) for one in zip(kinds, cells, strict=True)]
        )
        texts = [
            types.TextDocumentItem(uri, types.LanguageKind.Python, 1, text)
            for uri, text in zip(cells, sources, strict=True)
        ]
        client.notebook_document_did_open(types.DidOpenNotebookDocumentParams(document, texts))
        await client.codes(cells[2], "TPU202", "TPU102")
        assert client.published[cells[0]] == []
        changed = types.NotebookDocumentCellContentChanges(
            types.VersionedTextDocumentIdentifier(2, cells[2]),
            [types.TextDocumentContentChangeWholeDocument("x = 1")],
        )
        event = types.NotebookDocumentChangeEvent(cells=types.NotebookDocumentCellChanges(text_content=[changed]))
        client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(types.VersionedNotebookDocumentIdentifier(2, notebook), event)
        )
        await client.codes(cells[2])
        gone = types.NotebookDocumentCellChangeStructure(types.NotebookCellArrayChange(2, 1, []), [], [])
        client.published[cells[2]] = [types.Diagnostic(types.Range(types.Position(0, 0), types.Position(0, 1)), "old")]
        event = types.NotebookDocumentChangeEvent(cells=types.NotebookDocumentCellChanges(structure=gone))
        client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(types.VersionedNotebookDocumentIdentifier(3, notebook), event)
        )
        await client.codes(cells[2])

    with_editor(steps)


def test_the_text_that_jupyterlab_lsp_makes_of_a_notebook(tmp_path: Path) -> None:
    uri = (tmp_path / "train.ipynb").as_uri()

    async def steps(client: Editor) -> None:
        client.open(uri, "%matplotlib inline\n" + TEXT)
        await client.codes(uri, "TPU202", "TPU102")

    with_editor(steps)


def test_without_pygls_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tpu_magics.__main__ import main

    monkeypatch.delitem(sys.modules, "tpu_magics.check.server", raising=False)
    monkeypatch.setitem(sys.modules, "pygls.lsp.server", None)
    assert main(["server"]) == 1
    assert "tpu-magics[lsp]" in capsys.readouterr().err
