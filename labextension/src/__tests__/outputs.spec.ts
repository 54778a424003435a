import { ICodeCellModel } from '@jupyterlab/cells';
import { NotebookModel, NotebookPanel } from '@jupyterlab/notebook';
import { beforeEach, expect, it, vi } from 'vitest';
import { isShown, recordsOf, showHere } from '../outputs';
import { MIME_TYPE } from '../types';
import { done, page, problem, site } from './sample';

let model: NotebookModel;
let content: { activeCellIndex: number; scrollToItem: () => Promise<void> };
const panel = (): NotebookPanel => ({ model, content }) as unknown as NotebookPanel;
const cell = (index: number): ICodeCellModel => model.cells.get(index) as ICodeCellModel;

beforeEach(() => {
  vi.spyOn(console, 'warn').mockImplementation(() => undefined);
  model = new NotebookModel();
  model.sharedModel.insertCells(0, [
    { cell_type: 'markdown', source: '', metadata: {}, id: 'm' },
    { cell_type: 'code', source: '', metadata: {}, id: 'a' },
    { cell_type: 'code', source: 'torch_xla.sync()', metadata: {}, id: 'b' }
  ]);
  content = { activeCellIndex: 1, scrollToItem: async () => undefined };
});

it('show a run in the cell that it runs', () => {
  expect(isShown(panel(), 'run-1')).toBe(false);
  showHere(panel(), page({ problems: [problem({ site: site({ cell_id: 'b' }) })] }));
  expect(recordsOf(cell(2))).toMatchObject([{ id: 'run-1', live: true }]);
  expect(isShown(panel(), 'run-1')).toBe(true);
  expect(content.activeCellIndex).toBe(2);
});

it('show a run that tells of no cell in the selected one, if that is of code', () => {
  const bare = done({ problems: [], sections: [] });
  showHere(panel(), bare);
  expect(recordsOf(cell(1))).toHaveLength(1);
  content.activeCellIndex = 0;
  showHere(panel(), bare);
  expect(recordsOf(cell(1))).toHaveLength(1);
});

it('may hold anything', () => {
  for (const odd of ['text', null, 7, [], {}]) {
    const data = { [MIME_TYPE]: odd as never };
    cell(1).outputs.add({ output_type: 'display_data', data, metadata: {} });
  }
  expect(isShown(panel(), 'run-1')).toBe(false);
});
