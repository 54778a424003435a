// @vitest-environment jsdom The side panel as a widget: what it draws and asks for while it is seen, and while it is
// not.

import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { act } from 'react';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { KernelRuns } from '../model';
import { TpuPanel } from '../panel/widget';
import { ITpuSessions } from '../session';
import { done, FakeChannel, messages, page } from './sample';

(globalThis as Record<string, unknown>).IS_REACT_ACT_ENVIRONMENT = true;

let channel: FakeChannel;
let runs: KernelRuns;
let panel: TpuPanel;
let sessions: { current: KernelRuns; currentChanged: Signal<unknown, unknown> };

/** Until all that was put off is drawn. */
const drawn = (action: () => void): Promise<void> =>
  act(async () => {
    action();
    MessageLoop.flush();
    await panel.renderPromise;
  });
const take = (...all: unknown[]): Promise<void> =>
  drawn(() => all.forEach(each => runs.receive(each)));
const text = (): string => panel.node.textContent ?? '';

beforeEach(async () => {
  channel = new FakeChannel();
  runs = new KernelRuns('kernel', channel);
  const front = { context: { path: 'a.ipynb' } };
  sessions = Object.assign({ current: runs, panel: front }, { currentChanged: new Signal({}) });
  panel = new TpuPanel({
    sessions: sessions as unknown as ITpuSessions,
    translator: nullTranslator,
    onSite: () => 'line'
  });
  await drawn(() => Widget.attach(panel, document.body));
});

afterEach(() => drawn(() => panel.dispose()));

it('draws no update while it is hidden, and the newest when it is shown', async () => {
  await take(messages.run(1, page()));
  expect(text()).toContain('● training');
  await drawn(() => panel.hide());
  await take(messages.update(1, { state: 'late' }));
  expect(text()).toContain('● training');
  await drawn(() => panel.show());
  expect(text()).toContain('● late');
});

it('reads the list of runs when it is first seen', async () => {
  await drawn(() => panel.hide());
  await take(messages.hello());
  // Another notebook that comes to the front is noticed by a hidden panel as well.
  await drawn(() => sessions.currentChanged.emit(runs));
  expect(channel.count('runs')).toBe(0);
  await drawn(() => panel.show());
  expect(channel.count('runs')).toBe(1);
  await take(messages.runs(channel.last('runs').request));
  await drawn(() => panel.hide());
  await drawn(() => panel.show());
  expect(channel.count('runs')).toBe(1);
});

it('reads it again after the end of a run, and not while one goes on', async () => {
  await take(messages.hello({ run: 'run-1', live: true }));
  await take(messages.run(1, page()));
  expect(channel.count('runs')).toBe(0);
  await take(messages.run(2, done()));
  expect(channel.count('runs')).toBe(1);
  await take(messages.runs(channel.last('runs').request));
  await take(messages.run(3, page({ id: 'run-2' })));
  await drawn(() => panel.hide());
  await take(messages.run(4, done({ id: 'run-2' })));
  expect(channel.count('runs')).toBe(1);
  await drawn(() => panel.show());
  expect(channel.count('runs')).toBe(2);
});

it('says of a kernel of another version that, and not that nothing is loaded', async () => {
  await take({ ...messages.hello(), v: 2 });
  expect(text()).toContain('(kernel 2, extension 1)');
  expect(text()).not.toContain('is not loaded');
  expect(text()).not.toContain('%load_ext');
});
