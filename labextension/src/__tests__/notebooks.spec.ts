// What a person is told when a check was asked for.

import { Notification } from '@jupyterlab/apputils';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
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
