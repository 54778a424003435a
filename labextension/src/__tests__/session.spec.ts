// Notebooks that come and go, and what becomes of their kernels.

import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';
import { beforeEach, expect, it } from 'vitest';
import { Sessions } from '../session';
import { FakeKernel, settled } from './kernel';

class FakePanel {
  disposed = new Signal<this, void>(this);
  context = { path: 'a.ipynb', pathChanged: new Signal<object, string>({}) };
  sessionContext: {
    session: { kernel: FakeKernel } | null;
    kernelChanged: Signal<object, unknown>;
  };

  constructor(kernel: FakeKernel | null) {
    const session = kernel === null ? null : { kernel };
    this.sessionContext = { session, kernelChanged: new Signal<object, unknown>({}) };
  }

  /** As its tab is closed: its connection goes a moment later. */
  close(): void {
    this.disposed.emit();
  }

  rename(path: string): void {
    this.context.path = path;
    this.context.pathChanged.emit(path);
  }
}

let panels: FakePanel[];
let tracker: { currentWidget: FakePanel | null; widgetAdded: Signal<object, FakePanel> };
let sessions: Sessions;

const panelOf = (one: FakePanel): NotebookPanel => one as unknown as NotebookPanel;
const add = (kernel: FakeKernel): FakePanel => {
  const panel = new FakePanel(kernel);
  panels.push(panel);
  tracker.widgetAdded.emit(panel);
  return panel;
};
/** Where a kernel has a comm of ours. */
const kernelHere = (id: string, handleComms: boolean): FakeKernel =>
  Object.assign(new FakeKernel(id), { handleComms, known: ['comm'] });

beforeEach(() => {
  panels = [];
  const source = {};
  const made = {
    currentWidget: null,
    widgetAdded: new Signal<object, FakePanel>(source),
    currentChanged: new Signal<object, null>(source),
    forEach: (each: (panel: FakePanel) => void) => panels.forEach(each)
  };
  tracker = made;
  sessions = new Sessions(made as unknown as INotebookTracker);
});

it('goes on in the second notebook of a kernel when the first is closed', async () => {
  const [one, two] = [kernelHere('k', true), kernelHere('k', false)];
  const first = add(one);
  const second = add(two);
  await settled();
  expect(one.comms.get('comm')?.sent.map(each => each.type)).toEqual(['hello']);
  expect(two.posted).toEqual([]);
  first.close();
  await settled();
  expect(two.posted.map(each => each.data.type)).toEqual(['hello']);
  sessions.forPanel(panelOf(second))?.refreshRuns();
  expect(two.posted.map(each => each.data.type)).toEqual(['hello', 'runs']);
});

it('works in a notebook whose kernel a console had first', async () => {
  const kernel = kernelHere('k', false);
  const panel = add(kernel);
  await settled();
  sessions.forPanel(panelOf(panel))?.refreshRuns();
  expect(kernel.posted.map(each => each.data.type)).toEqual(['hello', 'runs']);
});

it('tells that the notebook in front has another path', () => {
  const panel = add(kernelHere('k', true));
  const other = add(kernelHere('l', true));
  tracker.currentWidget = panel;
  let told = 0;
  sessions.currentChanged.connect(() => (told += 1));
  other.rename('c.ipynb');
  expect(told).toBe(0);
  panel.rename('b.ipynb');
  expect(told).toBe(1);
  expect(sessions.panel?.context.path).toBe('b.ipynb');
});

it('tells the rate to all kernels, also to one that comes later', async () => {
  const kernels = ['k', 'l', 'm'].map(id => kernelHere(id, false));
  const rates = (): unknown[] =>
    kernels.map(kernel => kernel.posted.filter(each => each.data.type === 'rate').pop()?.data);
  add(kernels[0]);
  add(kernels[1]);
  await settled();
  expect(rates()).toEqual([undefined, undefined, undefined]);
  sessions.setRate(2);
  add(kernels[2]);
  await settled();
  expect(rates()).toMatchObject(Array(3).fill({ seconds: 2 }));
});
