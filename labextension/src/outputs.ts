// The outputs of a notebook that show a run.

import { ICodeCellModel } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import { cellFinder, cellTexts, isCode } from './cells';
import { MIME_TYPE, Page } from './types';

/** What a cell's outputs hold under our mime type. */
export function recordsOf(cell: ICodeCellModel): unknown[] {
  const found: unknown[] = [];
  for (let at = 0; at < cell.outputs.length; at++) {
    const data = cell.outputs.get(at).data[MIME_TYPE];
    if (data !== undefined) {
      found.push(data);
    }
  }
  return found;
}

/** Whether a notebook shows this run. */
export function isShown(panel: NotebookPanel, run: string): boolean {
  const cells = [...(panel.model?.cells ?? [])].filter(isCode);
  return cells.flatMap(recordsOf).some(data => (data as { id?: unknown } | null)?.id === run);
}

/** Show a run in the output of the cell that it runs, as far as the run tells of one; else of the selected cell. */
export function showHere(panel: NotebookPanel, page: Page): void {
  const { model, content } = panel;
  if (model === null) {
    return;
  }
  const rows = page.sections.flatMap(section => [...section.rows, ...section.items]);
  const find = cellFinder(cellTexts(model));
  const known = [...page.problems, ...rows].map(one => (one.site ? find(one.site) : -1));
  const index = known.find(at => at >= 0) ?? content.activeCellIndex;
  const cell = model.cells.get(index);
  if (isCode(cell)) {
    const data = { [MIME_TYPE]: page as never, 'text/plain': page.name };
    cell.outputs.add({ output_type: 'display_data', data, metadata: {} });
    content.activeCellIndex = index;
    void content.scrollToItem(index, 'smart').catch(() => undefined);
  }
}
