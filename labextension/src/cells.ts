// Cells of a notebook: finding one that a record names, and bringing a line of it into sight.

import { ICellModel, ICodeCellModel } from '@jupyterlab/cells';
import { CodeMirrorEditor } from '@jupyterlab/codemirror';
import { INotebookModel, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { EditorView } from '@codemirror/view';
import { mark } from './marks';
import { Reach } from './reveal';
import { CheckedCell, Site } from './types';

/** What of a site leads to its line. */
export type Place = Pick<Site, 'path' | 'line' | 'code' | 'cell_id'>;

/** A code cell as far as finding it needs. */
export interface CellText {
  id: string;
  number: number | null;
  source: string;
}

/** Pixels above and below the line that are in sight as well. */
const MARGIN = 60;
/** Milliseconds until a long notebook has rendered what is in sight. */
const SETTLED = 150;
/** Records hold at least as much of a line (launch/stacks.py). */
const CUT = 200;

// -- finding ---------------------------------------------------------------------------------------------------------

/** The execution count in "In [n]"; null where the path is another. */
export function numberOf(path: string): number | null {
  const found = /^In \[(\d+)\]$/.exec(path);
  return found ? Number(found[1]) : null;
}

/** Whether a line is still what a record says. `code` is stripped; of a long line it is the beginning. */
export function isStill(line: string | undefined, code: string): boolean {
  const text = line?.trim();
  const same = text === code.trim() || (code.length >= CUT && text?.startsWith(code.trim()));
  return code !== '' && same === true;
}

/** Which of the cells a place is in, -1 where it is in none.
 *
 * By its id. Notebooks of before format 4.5 have none that lasts: then by the execution count, if the line says what
 * the record says, as another kernel may have given that number to another cell. */
export function cellFinder(cells: readonly CellText[]): (place: Place) => number {
  const byId = new Map(cells.map((cell, index) => [cell.id, index]));
  const says = (cell: CellText, { line, code }: Place): boolean =>
    code === '' || isStill(cell.source.split('\n')[line - 1], code);
  return place => {
    const known = place.cell_id === '' ? undefined : byId.get(place.cell_id);
    const number = known === undefined ? numberOf(place.path) : null;
    return (
      known ??
      cells.findIndex(cell => number !== null && cell.number === number && says(cell, place))
    );
  };
}

/** Which line of a cell (counted from 1) says what a record says: of several the nearest to where the record has it. 0: none
 * does, as the cell was edited. A record without code can only be taken at its number. */
export function lineOf(source: string, { line, code }: Pick<Site, 'line' | 'code'>): number {
  const lines = source.split('\n');
  if (code === '') {
    return line >= 1 && line <= lines.length ? line : 0;
  }
  const same = lines.flatMap((text, at) => (isStill(text, code) ? [at + 1] : []));
  const near = (one: number): number => Math.abs(one - line);
  return same.reduce((best, one) => (best === 0 || near(one) < near(best) ? one : best), 0);
}

/** The cells of a notebook; of those that are no code, the text is left out. */
export function cellTexts(model: INotebookModel): CellText[] {
  return [...model.cells].map(cell => ({
    id: cell.id,
    number: isCode(cell) ? cell.executionCount : null,
    source: isCode(cell) ? cell.sharedModel.getSource() : ''
  }));
}

/** The code cells in their order, as the kernel wants them for a check. */
export function checkedCells(model: INotebookModel): CheckedCell[] {
  return [...model.cells].filter(isCode).map(cell => ({
    id: cell.id,
    number: cell.executionCount,
    source: cell.sharedModel.getSource()
  }));
}

export function isCode(cell: ICellModel): cell is ICodeCellModel {
  return cell.type === 'code';
}

// -- going there -----------------------------------------------------------------------------------------------------

/** Scroll to the line, put the cursor there and mark it for a moment. In a cell that has another text by now no line is
 * marked: it would be a wrong one. */
export function reveal(panel: NotebookPanel, site: Place): Reach {
  const cells = panel.model === null ? [] : cellTexts(panel.model);
  const index = cellFinder(cells)(site);
  if (index < 0) {
    return 'nothing';
  }
  const line = lineOf(cells[index].source, site);
  void goTo(panel, index, line).catch(reason =>
    console.warn('tpu_magics: the line was not reached', reason)
  );
  return line > 0 ? 'line' : 'cell';
}

/** `line` 0: the cell, and no line of it. */
async function goTo(panel: NotebookPanel, index: number, line: number): Promise<void> {
  const view = await rendered(panel, index);
  if (view === null) {
    return;
  }
  const found = view.state.doc.line(Math.min(Math.max(line, 1), view.state.doc.lines));
  const start = found.from + found.text.length - found.text.trimStart().length;
  const arrive = (): void => {
    panel.content.mode = 'edit';
    view.focus();
    view.dispatch({
      selection: { anchor: start },
      effects: EditorView.scrollIntoView(start, { y: 'nearest', yMargin: MARGIN })
    });
  };
  arrive();
  if (line > 0) {
    mark(view, found.from);
  }
  // A long notebook may still be putting cells in and out, which takes the focus to the notebook itself.
  await new Promise(resolve => setTimeout(resolve, SETTLED));
  if (
    !view.hasFocus &&
    [panel.content.node, document.body].includes(document.activeElement as HTMLElement)
  ) {
    arrive();
  }
}

/** The editor of a cell, which is rendered, unfolded and in sight then. A long notebook renders cells only where it is
 * looked at. */
async function rendered(panel: NotebookPanel, index: number): Promise<EditorView | null> {
  const notebook = panel.content;
  const cell = notebook.widgets[index];
  notebook.deselectAll();
  notebook.activeCellIndex = index;
  NotebookActions.expandParent(cell, notebook);
  cell.inputHidden = false;
  // Another scrolling that comes between takes this one's place; the cell's own way into sight is below.
  await notebook.scrollToItem(index, 'smart').catch(() => undefined);
  await cell.ready;
  const editor = cell.editor;
  return editor instanceof CodeMirrorEditor ? editor.editor : null;
}
