import { INotebookTracker } from '@jupyterlab/notebook';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { addCommands, Ids } from '../commands';
import { KernelRuns } from '../model';
import { done, FakeChannel, messages, page } from './sample';

const ALL = Object.values(Ids);

describe('the commands', () => {
  let commands: CommandRegistry;
  let tracker: { currentWidget: unknown; [name: string]: unknown };
  let sessions: { current: KernelRuns | null; [name: string]: unknown };
  const showPanel = vi.fn();

  const notebook = (language: string): unknown => ({
    content: { activeCell: { model: { type: 'code' } }, model: { defaultKernelLanguage: language } }
  });

  beforeEach(() => {
    commands = new CommandRegistry();
    tracker = { currentWidget: null };
    tracker.activeCellChanged = new Signal(tracker);
    tracker.currentChanged = new Signal(tracker);
    sessions = { current: null };
    sessions.currentChanged = new Signal(sessions);
    addCommands({
      commands,
      tracker: tracker as unknown as INotebookTracker,
      sessions: sessions as never,
      trans: nullTranslator.load('tpu_magics'),
      showPanel
    });
  });

  it('have a label and a caption', () => {
    for (const id of ALL) {
      expect(commands.label(id)).not.toBe('');
      expect(commands.caption(id)).not.toBe('');
    }
    expect(commands.caption(Ids.train)).toContain('Add %%tpu_train with');
    expect(commands.caption(Ids.init)).toContain('%load_ext tpu_magics and %tpu_init');
  });

  it('have an icon, but for the palette, which shows none', () => {
    expect(commands.icon(Ids.train)).toBeDefined();
    expect(commands.icon(Ids.train, { isPalette: true })).toBeUndefined();
  });

  it('can do nothing without a notebook but show the panel', async () => {
    expect(ALL.filter(id => commands.isEnabled(id))).toEqual([Ids.panel]);
    await commands.execute(Ids.panel);
    expect(showPanel).toHaveBeenCalled();
  });

  it.each([
    ['python', true],
    ['', true],
    ['R', false]
  ])('are for notebooks in %j: %s', (language, wanted) => {
    tracker.currentWidget = notebook(language);
    for (const id of [Ids.init, Ids.train, Ids.check, Ids.preflight]) {
      expect([commands.isVisible(id), commands.isEnabled(id)]).toEqual([wanted, wanted]);
    }
  });

  it('stop a run that is live, and tell when that changes', () => {
    const changed: (string | undefined)[] = [];
    commands.commandChanged.connect((_, { id }) => changed.push(id));
    sessions.current = new KernelRuns('one', new FakeChannel());
    (sessions.currentChanged as Signal<unknown, unknown>).emit(sessions.current);
    expect(commands.isEnabled(Ids.stop)).toBe(false);
    changed.length = 0;
    sessions.current.receive(messages.hello({ run: 'run-1', live: true }));
    sessions.current.receive(messages.run(1, page()));
    expect(changed).toEqual([Ids.stop]);
    expect(commands.isEnabled(Ids.stop)).toBe(true);
    sessions.current.receive(messages.run(2, done()));
    expect(changed).toEqual([Ids.stop, Ids.stop]);
    expect(commands.isEnabled(Ids.stop)).toBe(false);
  });
});
