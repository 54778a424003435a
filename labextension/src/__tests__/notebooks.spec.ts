// What a person is told when a check was asked for, and what "Train on TPU" does first.

import { Notification } from '@jupyterlab/apputils';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import * as actions from '../actions';
import { KernelRuns } from '../model';
import { CommandContext, Notebooks } from '../notebooks';
import { FakeChannel, messages } from './sample';

let channel: FakeChannel;
let runs: KernelRuns;
let notebooks: Notebooks;

beforeEach(() => {
  channel = new FakeChannel();
  runs = new KernelRuns('kernel', channel);
  notebooks = new Notebooks({
    commands: new CommandRegistry(),
    tracker: { currentWidget: { model: { cells: [] } } },
    sessions: { forPanel: () => runs },
    trans: nullTranslator.load('tpu_magics'),
    showPanel: () => undefined
  } as unknown as CommandContext);
});

afterEach(() => vi.restoreAllMocks());

it('is each answer once, however often the button is clicked', () => {
  const emit = vi.spyOn(Notification, 'emit').mockReturnValue('');
  runs.receive(messages.hello());
  notebooks.check();
  notebooks.check();
  const [first, second] = channel.sent.filter(each => each.query.type === 'check');
  runs.receive(messages.findings(first.request));
  expect(emit).toHaveBeenCalledTimes(1);
  runs.receive(messages.findings('of another page'));
  runs.receive(messages.findings(null));
  expect(emit).toHaveBeenCalledTimes(1);
  runs.receive(messages.findings(second.request));
  expect(emit.mock.calls.map(call => call[0])).toEqual(['1 broken rule', '1 broken rule']);
});

it('is that the kernel has another version, where it has', () => {
  const warning = vi.spyOn(Notification, 'warning').mockReturnValue('');
  const info = vi.spyOn(Notification, 'info').mockReturnValue('');
  runs.receive({ ...messages.hello(), v: 2 });
  notebooks.check();
  expect(warning.mock.calls[0][0]).toContain('(kernel 2, extension 1)');
  expect(info).not.toHaveBeenCalled();
});

describe('training', () => {
  const cell = {};
  const content = { activeCell: cell, activeCellIndex: 5, widgets: [{}, {}, cell] };
  const order: string[] = [];
  const execute = vi.fn(async (id: string) => void order.push(id));
  let train: () => Promise<void>;

  beforeEach(() => {
    order.length = 0;
    content.activeCellIndex = 5;
    vi.spyOn(actions, 'initCell').mockImplementation(() => void order.push('init'));
    vi.spyOn(actions, 'putTrainLine').mockImplementation(() => (order.push('line'), null));
    const on = new Notebooks({
      commands: { execute },
      tracker: { currentWidget: { content } },
      sessions: { forPanel: () => runs },
      trans: nullTranslator.load('tpu_magics')
    } as unknown as CommandContext);
    train = () => on.train();
  });

  it('loads the extension first where the kernel has not, and goes back to the cell', async () => {
    await train();
    expect(order).toEqual(['line', 'init', 'notebook:run-cell']);
    expect(content.activeCellIndex).toBe(2);
  });

  it('does not load it again', async () => {
    runs.receive(messages.hello());
    await train();
    expect(order).toEqual(['line']);
  });

  it('loads it also where the line is there already, and nothing where the cell cannot be trained', async () => {
    const warning = vi.spyOn(Notification, 'warning').mockReturnValue('');
    vi.spyOn(actions, 'putTrainLine').mockReturnValue('there');
    await train();
    expect(order).toEqual(['init', 'notebook:run-cell']);
    expect(warning).not.toHaveBeenCalled();
    runs.receive(messages.hello());
    await train();
    expect(warning.mock.calls[0][0]).toContain('already begins with %%tpu_train');
    vi.spyOn(actions, 'putTrainLine').mockReturnValue('read-only');
    runs.restarted();
    await train();
    expect(order).toHaveLength(2);
  });
});
