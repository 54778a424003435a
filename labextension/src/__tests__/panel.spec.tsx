// @vitest-environment jsdom What the panel shows, drawn for real in a document.

import { nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { act } from 'react';
import { createRoot, Root } from 'react-dom/client';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { KernelRuns } from '../model';
import { Actions, Body } from '../panel/body';
import { Around } from '../panel/pieces';
import { Reach } from '../reveal';
import { Page, Site } from '../types';
import {
  chart,
  done,
  fact,
  FakeChannel,
  item,
  messages,
  page,
  problem,
  section,
  SITE
} from './sample';

(globalThis as Record<string, unknown>).IS_REACT_ACT_ENVIRONMENT = true;

let host: HTMLElement;
let root: Root;
let channel: FakeChannel;
let runs: KernelRuns;
const onSite = vi.fn((_: Site): Reach => 'line');
const actions = {
  loadExtension: vi.fn(),
  check: vi.fn(),
  train: vi.fn(),
  stop: vi.fn(),
  isShown: vi.fn(() => true),
  showHere: vi.fn()
} satisfies Actions;

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

/** As it is seen, without what is only heard. */
function seen(node: Element = host): string {
  const copy = node.cloneNode(true) as Element;
  copy.querySelectorAll('.tpu-Hidden').forEach(each => each.remove());
  return copy.textContent ?? '';
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

const key = (name: string): KeyboardEvent =>
  new KeyboardEvent('keydown', { key: name, bubbles: true, cancelable: true });

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

  it('says how a run is begun, and lists the earlier ones with their losses', () => {
    show();
    take(messages.hello());
    expect(host.textContent).toContain('No run yet');
    expect(channel.count('runs')).toBe(1);
    take(messages.runs(channel.last('runs').request));
    const line = host.querySelector('[data-run="run-0"]')!;
    expect(line.textContent).toContain('6 recompiles');
    expect(line.textContent).toContain('loss 0.125');
    expect(line.querySelector('path')?.getAttribute('d')).toMatch(
      /^M1\.0 2\.0L32\.0 .*L63\.0 18\.0$/
    );
    click('earlier');
    expect(channel.last('open').query).toEqual({ type: 'open', run: 'run-0' });
  });

  it('says that the kernel was restarted', () => {
    show();
    take(messages.run(1, page()));
    act(() => runs.restarted());
    expect(host.textContent).toContain('The kernel was restarted');
    expect(host.textContent).toContain('? unknown');
    expect(host.textContent).toContain('text-classifier');
  });
});

describe('a live run', () => {
  beforeEach(() => {
    show();
    take(messages.hello({ run: 'run-1', live: true }), messages.run(1, page()));
  });

  it('shows the page in its order', () => {
    const places = [
      'text-classifier',
      '● training',
      '1 rank on XLA:CPU · 1 min 00 s',
      '440 of 1,000 steps',
      '2 → 0.5',
      'Steps440',
      'Step time41 msmedian',
      'Recompiles! 1',
      'the shape of an input changes',
      '3 times, 4.1 s',
      'input_ids now int64[32,129]',
      'Pad to a multiple of 64.',
      'XLA rules',
      'Compiles2 compiles, 1 recompile',
      'Ranks1 rank',
      'Run run-1.'
    ].map(words => [words, seen().indexOf(words)] as const);
    expect(places.filter(([, at]) => at < 0)).toEqual([]);
    expect(places.map(([, at]) => at)).toEqual(
      [...places.map(([, at]) => at)].sort((a, b) => a - b)
    );
    const bar = host.querySelector('[role=progressbar]')!;
    expect([bar.getAttribute('aria-valuenow'), bar.getAttribute('aria-valuemax')]).toEqual([
      '440',
      '1000'
    ]);
  });

  it('follows updates, and draws nothing else', () => {
    const kept = host.querySelector('.tpu-Problem');
    const changes: MutationRecord[] = [];
    const watcher = new MutationObserver(found => changes.push(...found));
    watcher.observe(host, {
      subtree: true,
      childList: true,
      characterData: true,
      attributes: true
    });
    take(messages.update(1, { elapsed: '2 min 00 s' }));
    changes.push(...watcher.takeRecords());
    watcher.disconnect();
    expect(seen()).toContain('1 rank on XLA:CPU · 2 min 00 s');
    expect(host.querySelector('.tpu-Problem')).toBe(kept);
    expect(changes.map(one => one.target.parentElement?.className)).toEqual(['tpu-Title-where']);
  });

  it('stays what it is when it ends, but for its state', () => {
    click('Compiles');
    click('#1');
    const before = [
      ...host.querySelectorAll('.tpu-Section, .tpu-Chart-plot, .tpu-Figure, .tpu-Item')
    ];
    take(messages.run(2, done()));
    expect([
      ...host.querySelectorAll('.tpu-Section, .tpu-Chart-plot, .tpu-Figure, .tpu-Item')
    ]).toEqual(before);
    expect(host.querySelector('.tpu-Unfolded')?.textContent).toContain('input_ids int64[32,129]');
    expect(seen()).toContain('✓ done');
    expect([...host.querySelectorAll('button')].some(each => each.textContent === 'Stop')).toBe(
      false
    );
  });

  it('unfolds a compile, and shows its line', () => {
    expect(host.querySelector('tr[data-key]')).toBeNull();
    click('Compiles');
    expect(host.querySelectorAll('tr[data-key]')).toHaveLength(2);
    click('#1');
    expect(host.querySelector('.tpu-Unfolded')?.textContent).toContain('input_ids int64[32,129]');
    expect(button('#1').getAttribute('aria-expanded')).toBe('true');
    act(() => host.querySelector<HTMLButtonElement>('tr[data-key] .tpu-Link')?.click());
    expect(onSite).toHaveBeenCalledWith(SITE);
    expect(host.querySelectorAll('.tpu-Unfolded')).toHaveLength(1);
  });

  it('has one stop of the Tab key for each row, and arrow keys for the rest of it', () => {
    click('Compiles');
    for (const row of host.querySelectorAll('tr[data-key], .tpu-Problem')) {
      const stops = [...row.querySelectorAll<HTMLElement>('button')];
      expect(stops.map(each => each.tabIndex)).toEqual([0, -1]);
    }
    const [unfold, link] = host.querySelectorAll<HTMLElement>('tr[data-key] button');
    unfold.focus();
    act(() => void unfold.dispatchEvent(key('ArrowRight')));
    expect(document.activeElement).toBe(link);
    expect([unfold.tabIndex, link.tabIndex]).toEqual([-1, 0]);
    take(messages.update(1, { elapsed: '3 min 00 s' }));
    expect([unfold.tabIndex, link.tabIndex]).toEqual([-1, 0]);
    act(() => void link.dispatchEvent(key('ArrowLeft')));
    expect(document.activeElement).toBe(unfold);
  });

  it('says where a line is not there', () => {
    const link = host.querySelector<HTMLButtonElement>('.tpu-Problem .tpu-Link')!;
    onSite.mockReturnValueOnce('nothing');
    act(() => link.click());
    expect(host.textContent).toContain('not in the open notebook');
    onSite.mockReturnValueOnce('cell');
    act(() => link.click());
    expect(host.textContent).toContain('its cell was edited');
  });

  it('is stopped by its button, which says so at once', () => {
    click('Stop');
    expect(actions.stop).toHaveBeenCalledOnce();
    act(() => runs.stop());
    expect(button('Stopping…').disabled).toBe(true);
    expect(seen()).toContain('● stopping…');
  });

  it('can be shown in the notebook where no cell shows it, as after a reload', () => {
    act(() => root.unmount());
    root = createRoot(host);
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    actions.isShown.mockReturnValue(false);
    show();
    expect(host.textContent).not.toContain('Show the panel here');
    act(() => void vi.advanceTimersByTime(6_000));
    vi.useRealTimers();
    click('Show the panel here');
    expect(actions.showHere).toHaveBeenCalledWith(runs.latest);
    actions.isShown.mockReturnValue(true);
    take(messages.update(1, { elapsed: '9 s' }));
    expect(host.textContent).not.toContain('Show the panel here');
  });

  it('waits behind an earlier one', () => {
    act(() => runs.open('run-0'));
    const earlier = done({ id: 'run-0', name: 'earlier' });
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
    act(() => runs.check([]));
    take(messages.findings(channel.last('check').request));
    const findings = host.querySelector('[data-section=findings]')!;
    expect(findings.textContent).toContain('1 broken rule in 5 cells.');
    expect([...findings.querySelectorAll('code')].map(each => each.textContent)).toContain(
      'loss > 1'
    );
    click('Check for XLA rules');
    expect(actions.check).toHaveBeenCalledOnce();
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
    const compared = host.querySelector('[data-section=compared]')!;
    expect(seen(compared)).toMatch(
      /Two runs.*loss.*earlier.*later.*Steps.*440.*220.*1 row is equal.*Device/
    );
    expect(compared.querySelector('details')?.open).toBe(false);
    expect(compared.querySelectorAll('thead td')).toHaveLength(2);
  });
});

describe('charts', () => {
  beforeEach(() => show());

  const tabs = (): HTMLElement[] => [...host.querySelectorAll<HTMLElement>('[role=tab]')];

  it('stand behind tabs, of which one is a stop of the Tab key', () => {
    const second = chart({ key: 'value lr', title: 'lr', caption: '0.1 → 0.01' });
    take(messages.run(1, page({ charts: [chart(), second] })));
    expect(tabs().map(each => [each.textContent, each.tabIndex])).toEqual([
      ['loss', 0],
      ['lr', -1]
    ]);
    expect(seen()).toContain('2 → 0.5');
    act(() => void tabs()[0].dispatchEvent(key('ArrowRight')));
    expect(document.activeElement).toBe(tabs()[1]);
    expect(seen()).toContain('0.1 → 0.01');
    expect(host.querySelectorAll('.tpu-Chart')).toHaveLength(1);
  });

  it('are named, and their values can be heard', () => {
    take(messages.run(1, page()));
    const plot = host.querySelector('[role=slider]')!;
    expect(plot.getAttribute('aria-label')).toBe('loss 2 → 0.5');
    expect(host.querySelector('.tpu-Chart .tpu-Hidden')?.textContent).toBe(
      'loss. step 0: 2; step 1: 1; step 2: 0.5.'
    );
    expect(host.querySelector('.tpu-Chart-key')?.textContent).toBe('compiled');
  });

  it('say what the marks of checkpoints are', () => {
    const [chart, ...others] = page().charts;
    take(messages.run(1, { ...page(), charts: [{ ...chart!, saved: [1] }, ...others] }));
    expect(host.querySelector('.tpu-Chart-key [data-curve=saved]')?.textContent).toBe('saved');
  });

  it('say that a value was no number, and have no curve of one value', () => {
    const points: Page['charts'][0]['points'] = [
      [0, 1, 1, 1],
      [1, 'nan', 'nan', 'nan']
    ];
    take(messages.run(1, page({ charts: [chart({ points, warning: 'nan at step 1' })] })));
    expect(seen()).toContain('! nan at step 1');
    expect(seen()).toContain('No curve');
    expect(host.querySelector('[role=slider]')).toBeNull();
  });

  it('have a logarithmic scale where all is above zero', () => {
    take(messages.run(1, page()));
    click('Log');
    expect(button('Log').getAttribute('aria-pressed')).toBe('true');
    take(
      messages.update(1, {
        charts: [
          chart({
            points: [
              [0, 1, 1, 1],
              [1, -1, -1, -1]
            ]
          })
        ]
      })
    );
    expect([...host.querySelectorAll('button')].some(each => each.textContent === 'Log')).toBe(
      false
    );
  });
});

describe('what is odd', () => {
  it('stays text', () => {
    show();
    const evil = '<img src=x onerror=alert(1)>';
    const facts = [fact({ label: evil, lines: [evil], mark: evil, tone: 'ok', code: evil })];
    const rows = [{ cells: [evil, evil], tone: '' as const, site: SITE }];
    const sections = [
      section({
        title: evil,
        summary: evil,
        columns: [evil],
        items: [item(1, { cells: [evil], facts })]
      }),
      section({
        key: 'b',
        title: evil,
        facts,
        rows,
        items: [],
        notes: [evil],
        problems: [problem()]
      })
    ];
    const failure = { tone: 'broken' as const, what: evil, why: evil, todo: evil, lines: [evil] };
    const odd = {
      ...{
        name: evil,
        where: evil,
        detail: evil,
        footer: evil,
        elapsed: evil,
        state: evil,
        symbol: evil
      },
      charts: [chart({ title: evil, caption: evil, warning: evil, x: evil })],
      figures: [{ label: evil, value: evil, note: evil, hint: evil, tone: '' as const }],
      problems: [problem({ title: evil, text: evil, fix: evil, count: evil, differences: [evil] })],
      ...{ failure, sections }
    };
    take(messages.run(1, page(odd)));
    host.querySelectorAll<HTMLElement>('h3 > button').forEach(each => act(() => each.click()));
    host.querySelectorAll<HTMLElement>('.tpu-Unfold').forEach(each => act(() => each.click()));
    expect(host.querySelector('img')).toBeNull();
    expect(host.querySelector('h2')?.textContent).toBe(evil);
    expect(host.textContent!.split(evil).length).toBeGreaterThan(30);
  });

  it('of a thousand compiles shows fifty, and more on request', () => {
    show();
    const items = Array.from({ length: 1_000 }, (_, at) => item(1_000 - at));
    take(messages.run(1, page({ sections: [section({ items })] })));
    click('Compiles');
    expect(host.querySelectorAll('tr[data-key]')).toHaveLength(50);
    click('Show 50 more (of 950)');
    expect(host.querySelectorAll('tr[data-key]')).toHaveLength(100);
  });

  it('has nothing but a failure', () => {
    show();
    const failure = {
      tone: 'broken' as const,
      what: 'Rank 1 failed.',
      why: 'A `ValueError`.',
      todo: 'Run `pip install x`.',
      lines: ['Traceback', '  line']
    };
    const nothing = { charts: [], figures: [], problems: [], sections: [], progress: null };
    take(
      messages.run(1, done({ ...nothing, failure, state: 'failed', tone: 'broken', symbol: '✗' }))
    );
    expect(seen(host.querySelector('.tpu-Failure')!)).toContain('What to do: Run pip install x.');
    expect(host.querySelector('pre')?.textContent).toBe('Traceback\n  line');
    expect(host.querySelector('.tpu-Figures, .tpu-Problems, .tpu-Chart, .tpu-Progress')).toBeNull();
  });

  it('is a table without headings, which has no empty head', () => {
    show();
    const rows = [{ cells: ['a', 'b'], tone: '' as const, site: null }];
    take(messages.run(1, page({ sections: [section({ items: [], rows, columns: [] })] })));
    click('Compiles');
    expect(host.querySelector('thead')).toBeNull();
    expect(host.querySelector('tbody th')?.textContent).toBe('a');
  });

  it('is a word of a record that is a name in JavaScript', () => {
    show();
    const [line] = messages.runs().runs;
    take(messages.hello(), { ...messages.runs(), runs: [{ ...line, status: 'valueOf' }] });
    expect(host.querySelector('li[data-run] .tpu-Chip')?.className).toContain('tpu-mod-plain');
  });

  it('are commands and code, which can be copied', async () => {
    show();
    const writeText = vi.fn(async () => undefined);
    vi.stubGlobal('navigator', { clipboard: { writeText } });
    const fix = 'Run `%tpu_doctor`, not `x`.';
    take(messages.run(1, page({ problems: [problem({ fix, differences: ['a', 'b'] })] })));
    const copies = [...host.querySelectorAll<HTMLButtonElement>('.tpu-Copy')];
    await act(async () => copies.forEach(each => each.click()));
    expect(writeText.mock.calls).toEqual([['a\nb'], ['%tpu_doctor']]);
    expect(copies[0].getAttribute('aria-label')).toBe('Copied');
    vi.unstubAllGlobals();
  });
});
