// What the commands do to a notebook's cells.

import { Cell } from '@jupyterlab/cells';
import { Notebook } from '@jupyterlab/notebook';
import { readCell, magicOf, trainLine } from './trainline';

/** Texts for translation have this as an argument: two percent signs in them stand for one. */
export const TRAIN = '%%tpu_train';
export const INIT = '%load_ext tpu_magics\n%tpu_init';
const TARGET = 'v5litepod-8';

/** The texts of the code cells other than this one. */
function others(notebook: Notebook, cell: Cell): string[] {
  return notebook.widgets
    .filter(one => one !== cell && one.model.type === 'code')
    .map(one => one.model.sharedModel.getSource());
}

/** Put a code cell into the notebook, and select it. One step to undo. */
export function insertCell(notebook: Notebook, index: number, source: string): void {
  notebook.model?.sharedModel.insertCell(index, {
    cell_type: 'code',
    source,
    // What one asks for by a command is as trusted as what one types.
    metadata: { trusted: true }
  });
  notebook.deselectAll();
  notebook.activeCellIndex = index;
}

/** The cell that loads and initialises: the one that is there, else a new one above the selected cell. It is selected
 * then. */
export function initCell(notebook: Notebook): void {
  const known = notebook.widgets.findIndex(
    cell => cell.model.type === 'code' && /^%tpu_init\b/m.test(cell.model.sharedModel.getSource())
  );
  const loads =
    known >= 0 &&
    /^%load_ext +tpu_magics/m.test(notebook.widgets[known].model.sharedModel.getSource());
  if (loads) {
    notebook.deselectAll();
    notebook.activeCellIndex = known;
  } else {
    insertCell(notebook, Math.max(notebook.activeCellIndex, 0), INIT);
  }
}

/** Why a cell cannot be trained; "no-code", "read-only", "there": the line is, or the cell magic that has its place. */
export type Refusal = 'no-code' | 'read-only' | 'there' | `%%${string}`;

/** Put `%%tpu_train` with its arguments on top of a cell. Returns why not, or null where it was done. */
export function putTrainLine(notebook: Notebook, cell: Cell): Refusal | null {
  if (cell.model.type !== 'code') {
    return 'no-code';
  }
  const text = cell.model.sharedModel;
  const magic = magicOf(text.getSource());
  if (magic !== '') {
    return magic === TRAIN ? 'there' : (magic as Refusal);
  }
  if (cell.readOnly || cell.model.getMetadata('editable') === false) {
    return 'read-only';
  }
  text.updateSource(0, 0, `${trainLine(text.getSource(), others(notebook, cell))}\n`);
  return null;
}

/** `%tpu_preflight` for the function of a cell; of one that is under `%%tpu_train`, with the ARGs that stand there. */
export function preflightLine(source: string, other: readonly string[]): string {
  const found = /^%%tpu_train(.*)$/m.exec(magicOf(source) === TRAIN ? source : '');
  const read = readCell(found ? source.slice(found.index + found[0].length) : source, other);
  const given = found ? argsOf(found[1]) : '';
  const words = read.form === 1 ? [read.name, given || read.args.join(' ')] : ['FUNCTION', 'ARGS'];
  return ['%tpu_preflight', ...words.filter(Boolean), '--target', TARGET].join(' ');
}

/** The ARGs of a line: its words up to the first option. Quotes and brackets keep what is in them together. */
function argsOf(line: string): string {
  const words = line.match(/(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\([^)]*\)|\{[^}]*\}|\S)+/g) ?? [];
  const option = words.findIndex(word => /^--?[a-zA-Z]/.test(word));
  return words.slice(0, option < 0 ? undefined : option).join(' ');
}

/** Put a `%tpu_preflight` cell below this one, to be looked over and run. */
export function putPreflight(notebook: Notebook, cell: Cell): void {
  const line = preflightLine(
    cell.model.type === 'code' ? cell.model.sharedModel.getSource() : '',
    others(notebook, cell)
  );
  insertCell(notebook, notebook.widgets.indexOf(cell) + 1, line);
  notebook.mode = 'edit';
}
