import { EditorState } from '@codemirror/state';
import { EditorView } from '@codemirror/view';
import { ICodeCellModel } from '@jupyterlab/cells';
import { NotebookModel, NotebookPanel } from '@jupyterlab/notebook';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { BadgeBoard, NotebookBadges } from '../board';
import { badgesOf } from '../badges';
import { KernelRuns } from '../model';
import { ITpuSessions } from '../session';
import { TpuSettings } from '../settings';
import { MIME_TYPE, Page, Problem } from '../types';
import { done, FakeChannel, messages, page, problem, rule, site as sampleSite } from './sample';

const trans = nullTranslator.load('tpu_magics');
/** Line 2 of the cell `a`. */
const site = (more = {}) => sampleSite({ path: 'In [3]', line: 2, cell_id: 'a', ...more });
const record = (
  more: Partial<Page> = {},
  problems: Problem[] = [problem({ site: site() })]
): Page => page({ problems, sections: [], ...more });
const checked = (...found: Problem[]) => messages.findings(null, found);
const SOURCE = 'if x > 1:\n    torch_xla.sync()';
/** Signals, and what is put off until they are through. */
const settled = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 0));

describe('the badges of a notebook', () => {
  let model: NotebookModel;
  let panel: { [name: string]: unknown };
  let kernels: (KernelRuns | null)[];
  let sessions: ITpuSessions;
  let currentChanged: Signal<ITpuSessions, KernelRuns | null>;
  let settings: TpuSettings;
  let board: BadgeBoard;
  let views: EditorView[];

  /** An editor of a cell, as the notebook makes one when the cell is rendered. */
  const open = (index: number): EditorView => {
    const text = model.cells.get(index).sharedModel;
    const state = EditorState.create({ doc: text.getSource(), extensions: board.extension(text) });
    views.push(new EditorView({ state, parent: document.body }));
    return views[views.length - 1];
  };
  const lines = (view: EditorView): number[] => badgesOf(view.state).map(badge => badge.line);
  const told = (runs: KernelRuns, seq: number, id = 'run-1'): void => {
    runs.receive(messages.run(seq, record({ id })));
  };

  beforeEach(async () => {
    // Yjs complains of what @jupyter/ydoc does whenever it makes a cell.
    vi.spyOn(console, 'warn').mockImplementation(() => undefined);
    vi.spyOn(EditorView.prototype, 'requestMeasure').mockImplementation(() => undefined);
    views = [];
    model = new NotebookModel();
    model.sharedModel.insertCells(0, [
      { cell_type: 'markdown', source: SOURCE, metadata: {}, id: 'm' },
      { cell_type: 'code', source: SOURCE, metadata: {}, id: 'a' },
      { cell_type: 'code', source: SOURCE, metadata: {}, id: 'b' }
    ]);
    kernels = [new KernelRuns('one', new FakeChannel())];
    panel = { model, context: { ready: Promise.resolve() } };
    panel.disposed = new Signal(panel);
    panel.sessionContext = {};
    (panel.sessionContext as { kernelChanged: unknown }).kernelChanged = new Signal(panel);
    sessions = { current: null, panel: null, forPanel: () => kernels[0] } as never;
    currentChanged = new Signal(sessions);
    Object.assign(sessions, { currentChanged });
    settings = new TpuSettings();
    board = new BadgeBoard(trans, () => undefined);
    new NotebookBadges(panel as unknown as NotebookPanel, sessions, settings, board, trans);
    await settled();
  });

  afterEach(() => {
    views.forEach(view => view.destroy());
    vi.restoreAllMocks();
  });

  it('come with a run, at its cell only', async () => {
    const [, cell, other] = [0, 1, 2].map(open);
    told(kernels[0]!, 1);
    await settled();
    expect([lines(cell), lines(other)]).toEqual([[2], []]);
  });

  it('count on while the line recompiles', async () => {
    const cell = open(1);
    told(kernels[0]!, 1);
    await settled();
    const again = problem({ site: site(), badge: 'recompiled 4x', count: '4 times' });
    kernels[0]!.receive(messages.update(1, { problems: [again] }));
    await settled();
    expect(badgesOf(cell.state)[0].problems[0].problem.badge).toBe('recompiled 4x');
  });

  it('come with a check', async () => {
    const cell = open(1);
    kernels[0]!.receive(checked(rule({ site: site() }), rule({ site: site({ cell_id: 'm' }) })));
    await settled();
    expect(lines(cell)).toEqual([2]);
  });

  it('go when the cell is edited where it is not rendered, and stay away', async () => {
    told(kernels[0]!, 1);
    model.cells.get(1).sharedModel.updateSource(0, 0, 'y\n');
    model.cells.get(1).sharedModel.updateSource(0, 2, '');
    await settled();
    expect(model.cells.get(1).sharedModel.getSource()).toBe(SOURCE);
    expect(lines(open(1))).toEqual([]);
    told(kernels[0]!, 2);
    await settled();
    expect(lines(open(1))).toEqual([]);
    told(kernels[0]!, 3, 'run-2');
    await settled();
    expect(lines(open(1))).toEqual([2]);
  });

  it('stay when another cell is edited', async () => {
    const cell = open(1);
    told(kernels[0]!, 1);
    model.cells.get(2).sharedModel.updateSource(0, 0, 'y\n');
    await settled();
    expect(lines(cell)).toEqual([2]);
  });

  it('go and come with the setting', async () => {
    const cell = open(1);
    told(kernels[0]!, 1);
    settings.take({ badges: false });
    await settled();
    expect(lines(cell)).toEqual([]);
    settings.take({ badges: true });
    await settled();
    expect(lines(cell)).toEqual([2]);
  });

  it('are those of the notebook’s kernel', async () => {
    const cell = open(1);
    told(kernels[0]!, 1);
    const before = kernels[0]!;
    kernels[0] = new KernelRuns('two', new FakeChannel());
    currentChanged.emit(null);
    await settled();
    expect(lines(cell)).toEqual([]);
    told(before, 2, 'run-2');
    await settled();
    expect(lines(cell)).toEqual([]);
  });

  it('follow a cell that is moved', async () => {
    told(kernels[0]!, 1);
    model.sharedModel.moveCell(1, 2);
    await settled();
    expect(model.cells.get(2).id).toBe('a');
    expect([lines(open(1)), lines(open(2))]).toEqual([[], [2]]);
  });

  it('are those of the run that the output shows, in a saved notebook as well', async () => {
    kernels[0] = null;
    const [cell, other] = [1, 2].map(open);
    const outputs = (model.cells.get(1) as ICodeCellModel).outputs;
    const show = (shown: unknown): number =>
      outputs.add({
        output_type: 'display_data',
        data: { [MIME_TYPE]: shown },
        metadata: {}
      } as never);
    show(done({ id: '2026-1', problems: [problem({ site: site() })], sections: [] }));
    await settled();
    expect([lines(cell), lines(other)]).toEqual([[2], []]);
    // Another cell has trained since; its run says something of this cell, too.
    kernels[0] = new KernelRuns('one', new FakeChannel());
    currentChanged.emit(kernels[0]);
    await settled();
    const later = [problem({ site: site({ cell_id: 'b' }) }), problem({ key: 'y', site: site() })];
    kernels[0].receive(messages.run(1, record({ id: '2026-2' }, later)));
    await settled();
    expect([lines(cell), lines(other)]).toEqual([[2], [2]]);
    expect(badgesOf(cell.state)[0].problems.map(one => one.key)).toEqual([
      `2026-1\n${problem().key}`
    ]);
    outputs.clear();
    await settled();
    expect(badgesOf(cell.state)[0].problems.map(one => one.key)).toEqual(['2026-2\ny']);
  });

  it('take no harm from an output that cannot be read', async () => {
    const outputs = (model.cells.get(1) as ICodeCellModel).outputs;
    for (const odd of ['text', { v: 7 }, { v: 1 }, [], null]) {
      outputs.add({
        output_type: 'display_data',
        data: { [MIME_TYPE]: odd },
        metadata: {}
      } as never);
    }
    const cell = open(1);
    told(kernels[0]!, 1);
    await settled();
    expect(lines(cell)).toEqual([2]);
  });

  it('are let alone by updates that tell of nothing new', async () => {
    const cell = open(1);
    told(kernels[0]!, 1);
    await settled();
    const before = badgesOf(cell.state);
    kernels[0]!.receive(messages.update(1, { elapsed: '5 s' }));
    await settled();
    expect(badgesOf(cell.state)).toBe(before);
  });
});
