// @vitest-environment jsdom What the panel shows, drawn for real in a document.

import { nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { act } from 'react';
import { createRoot, Root } from 'react-dom/client';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { KernelRuns } from '../model';
import { Actions, Body } from '../panel/body';
import { Around } from '../panel/pieces';
import { Reached, Site } from '../types';
import { compile, entry, FakeChannel, finding, messages, record, series, SITE } from './sample';

(globalThis as Record<string, unknown>).IS_REACT_ACT_ENVIRONMENT = true;

let host: HTMLElement;
let root: Root;
let channel: FakeChannel;
let runs: KernelRuns;
const onSite = vi.fn((_: Site): Reached => 'line');
const actions: Actions = { loadExtension: vi.fn(), check: vi.fn(), train: vi.fn(), stop: vi.fn() };

beforeEach(() => {
  vi.clearAllMocks();
  host = document.body.appendChild(document.createElement('div'));
  root = createRoot(host);
  channel = new FakeChannel();
  runs = new KernelRuns('kernel', channel);
});

afterEach(() => {
  act(() => root.unmount());
  host.remove();
});

function show(
  kernel: KernelRuns | null = runs,
  notebook: string | null = 'work/train.ipynb'
): void {
  const around = {
    trans: nullTranslator.load('tpu_magics'),
    onSite,
    folds: new Map<string, boolean>()
  };
  act(() =>
    root.render(
      <Around.Provider value={around}>
        <Body runs={kernel} notebook={notebook} actions={actions} />
      </Around.Provider>
    )
  );
}

function take(...all: unknown[]): void {
  act(() => all.forEach(each => runs.receive(each)));
}

function button(text: string): HTMLButtonElement {
  const found = [...host.querySelectorAll('button')].find(each => each.textContent?.includes(text));
  if (found === undefined) {
    throw new Error(`no button ${text} in ${host.textContent}`);
  }
  return found;
}

function click(text: string): void {
  act(() => button(text).click());
}

describe('where there is no run', () => {
  it('says what to do', () => {
    show(null, null);
    expect(host.textContent).toContain('No notebook is open');
    show(null);
    expect(host.textContent).toContain('This notebook has no kernel');
    show();
    expect(host.textContent).toContain('%load_ext tpu_magics');
    click('Load tpu_magics');
    expect(actions.loadExtension).toHaveBeenCalledOnce();
  });

  it('says how a run is begun, and lists the earlier ones', () => {
    show();
    take(messages.hello());
    expect(host.textContent).toContain('No run yet');
    expect(channel.count('runs')).toBe(1);
    take(messages.runs(channel.last('runs').request));
    expect(host.querySelector('[data-run="run-0"]')?.textContent).toContain('6 recompiles');
    click('earlier');
    expect(channel.last('open').query).toEqual({ type: 'open', run: 'run-0' });
  });

  it('says that the kernel was restarted', () => {
    show();
    take(messages.run(1, record()));
    act(() => runs.restarted());
    expect(host.textContent).toContain('The kernel was restarted');
    expect(host.textContent).toContain('? unknown');
    expect(host.textContent).toContain('text-classifier');
  });
});

describe('a live run', () => {
  beforeEach(() => {
    show();
    take(messages.hello({ run: 'run-1', live: true }), messages.run(1, record()));
  });

  it('shows what Python has worded', () => {
    for (const words of [
      '● training',
      'as asked',
      '2 compiles, 1 recompile',
      'Take care.',
      'Run run-1.'
    ]) {
      expect(host.textContent).toContain(words);
    }
    expect(host.querySelector('.tpu-mod-amber')?.textContent).toContain('! 1');
    expect(host.querySelectorAll('.tpu-Chart')).toHaveLength(4);
  });

  it('follows updates', () => {
    take(messages.update(1, { said: { state: '● late' }, log: [entry(2)] }));
    expect(host.textContent).toContain('● late');
    expect(host.querySelectorAll('tr[data-key]')).toHaveLength(3);
  });

  it('unfolds a compile, and shows its line', () => {
    click('#1');
    const details = host.querySelector('.tpu-Unfolded');
    expect(details?.textContent).toContain('from #0');
    expect(details?.textContent).toContain('input_ids int64[32,129]');
    expect(details?.querySelector('code')?.textContent).toBe('torch_xla.sync()');
    expect(button('#1').getAttribute('aria-expanded')).toBe('true');
    act(() => host.querySelector<HTMLButtonElement>('tr[data-key] .tpu-Link')?.click());
    expect(onSite).toHaveBeenCalledWith(SITE);
    expect(host.querySelectorAll('.tpu-Unfolded')).toHaveLength(1);
  });

  it('says where a line is not there', () => {
    onSite.mockReturnValueOnce('nothing');
    act(() => host.querySelector<HTMLButtonElement>('tr[data-key] .tpu-Link')?.click());
    expect(host.textContent).toContain('not in the open notebook');
    onSite.mockReturnValueOnce('cell');
    act(() => host.querySelector<HTMLButtonElement>('tr[data-key] .tpu-Link')?.click());
    expect(host.textContent).toContain('its cell was edited');
  });

  it('is stopped by its button', () => {
    click('Stop');
    expect(actions.stop).toHaveBeenCalledOnce();
    take(messages.stopping('run-1'));
    expect(button('Stopping…').disabled).toBe(true);
  });

  it('waits behind an earlier one', () => {
    act(() => runs.open('run-0'));
    const earlier = record({ id: 'run-0', name: 'earlier', live: false }, { state: '✓ done' });
    take(messages.run(0, earlier, channel.last('open').request));
    expect(host.querySelector('h2')?.textContent).toBe('earlier');
    expect([...host.querySelectorAll('button')].some(each => each.textContent === 'Stop')).toBe(
      false
    );
    click('Back to the live run');
    expect(host.querySelector('h2')?.textContent).toBe('text-classifier');
  });

  it('tells of another version and of a problem', () => {
    act(() => runs.open('run-0'));
    take(messages.problem(channel.last('open').request), { ...messages.here('run-1', 1), v: 3 });
    const bars = [...host.querySelectorAll('[role=alert]')].map(each => each.textContent);
    expect(bars[0]).toContain('(kernel 3, extension 1)');
    expect(bars[1]).toContain('There is no such run.');
  });

  it('shows what was checked', () => {
    click('Check for XLA rules');
    expect(actions.check).toHaveBeenCalledOnce();
    take(messages.findings());
    expect(host.textContent).toContain('1 broken rule in 5 cells.');
    expect([...host.querySelectorAll('code')].map(each => each.textContent)).toContain('loss > 1');
  });

  it('compares two', () => {
    take(messages.runs());
    const [line] = messages.runs().runs;
    take({ ...messages.runs(), runs: [line, { ...line, id: 'run-2', name: 'second' }] });
    const boxes = [...host.querySelectorAll<HTMLInputElement>('input[type=checkbox]')];
    expect(button('Compare').disabled).toBe(true);
    boxes.forEach(box => act(() => box.click()));
    click('Compare');
    expect(channel.last('compare').query).toEqual({ type: 'compare', runs: ['run-0', 'run-2'] });
    take(messages.compared(channel.last('compare').request));
    expect(host.querySelector('[data-section=compared]')?.textContent).toContain('Two runs');
  });
});

describe('what is odd', () => {
  it('stays text', () => {
    show();
    const evil = '<img src=x onerror=alert(1)>';
    const graph = compile(1, { text: evil, fix: evil, cause: evil, difference: [evil] });
    take(
      messages.run(
        1,
        record(
          {
            name: evil,
            compile_log: [{ key: 'a', rank: 0, compile: graph }],
            values: [series({ name: evil })],
            findings: [finding({ message: evil })]
          },
          { notes: evil, footer: evil }
        )
      )
    );
    click('#1');
    expect(host.querySelector('img')).toBeNull();
    expect(host.querySelector('h2')?.textContent).toBe(evil);
  });

  it('of a thousand compiles shows a hundred, and more on request', () => {
    show();
    const log = Array.from({ length: 1_000 }, (_, at) => entry(1_000 - at));
    take(messages.run(1, record({ compile_log: log, compiles: 10_000 })));
    expect(host.querySelectorAll('tr[data-key]')).toHaveLength(100);
    expect(host.textContent).toContain('9,000 older ones are in the run folder only.');
    click('Show 100 more (of 900)');
    expect(host.querySelectorAll('tr[data-key]')).toHaveLength(200);
  });

  it('has no compiles, no values, a failure', () => {
    show();
    const failure = {
      facts: [
        {
          label: 'What happened',
          lines: ['Rank 1 failed.'],
          state: 'broken',
          mark: 'failed',
          code: ''
        }
      ],
      lines: ['Traceback', '  line']
    };
    const view = {
      compiles: null,
      recompiles: null,
      compile_log: [],
      causes: [],
      values: [],
      rates: []
    };
    take(
      messages.run(
        1,
        record({ ...view, live: false }, { failure, compiles: 'Compiles: n/a (why).' })
      )
    );
    expect(host.textContent).toContain('Compiles: n/a (why).');
    expect(host.querySelector('.tpu-Failure')?.textContent).toContain('✗ failed');
    expect(host.querySelector('pre')?.textContent).toBe('Traceback\n  line');
    expect(host.textContent).toContain('No values logged');
  });

  it('is a loss that is no number', () => {
    show();
    const points = [0, 1, 2, 3].map(step => ({
      step,
      value: step < 2 ? 1 - step / 4 : ('nan' as const),
      low: 'nan' as const,
      high: 'nan' as const
    }));
    take(messages.run(1, record({ values: [series({ last: 'nan', points, not_finite_at: 2 })] })));
    const chart = host.querySelector('.tpu-Chart');
    expect(chart?.textContent).toContain('! not a finite number at step 2');
    expect(chart?.innerHTML).not.toContain('NaN');
    expect(chart?.querySelector('.tpu-Chart-broken')).not.toBeNull();
  });
});
