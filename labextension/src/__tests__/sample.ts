// Pages and messages for tests.

import * as T from '../types';
import { IChannel } from '../model';

/** A part of a line; the rest of it is usual. */
export const site = (more: Partial<T.Site> = {}): T.Site => ({
  id: 0,
  path: 'In [12]',
  line: 14,
  function: 'training_function',
  code: 'torch_xla.sync()',
  cell_id: 'abc',
  ...more
});

export const SITE = site();

export const problem = (more: Partial<T.Problem> = {}): T.Problem => ({
  key: 'recompile input-shape 14',
  kind: 'recompile',
  tone: 'warning',
  title: 'Recompiles: the shape of an input changes',
  text: 'The shape of `input_ids` changed.',
  fix: 'Pad to a multiple of 64.',
  count: '3 times, 4.1 s',
  times: 3,
  badge: 'recompiled 3x',
  site: SITE,
  differences: ['input_ids now int64[32,129], before int64[32,128]'],
  ...more
});

/** A rule that is broken, as a check and a run tell of it. */
export const rule = (more: Partial<T.Problem> = {}): T.Problem =>
  problem({
    key: 'rule TPU101 14',
    kind: 'rule',
    title: 'TPU101 value read',
    text: 'The condition `loss > 1` reads a value. The host waits.',
    fix: 'Use `torch.where`.',
    count: '',
    times: 0,
    badge: 'TPU101 value read',
    differences: [],
    ...more
  });

export const chart = (more: Partial<T.Chart> = {}): T.Chart => ({
  key: 'value loss',
  title: 'loss',
  caption: '2 → 0.5',
  points: [
    [0, 2, 2, 2],
    [1, 1, 0.8, 1.2],
    [2, 0.5, 0.4, 0.6]
  ],
  axis: 'number',
  x: 'step',
  marked: true,
  warning: '',
  saved: [],
  ...more
});

export const fact = (more: Partial<T.Fact> = {}): T.Fact => ({
  label: 'Inputs',
  lines: ['input_ids int64[32,129]'],
  tone: '',
  mark: '',
  code: '',
  ...more
});

export const item = (nth: number, more: Partial<T.Item> = {}): T.Item => ({
  key: `0-0-${nth}`,
  cells: [`#${nth}`, 'In [12], line 14', '1.21 s', 'an input'],
  facts: [fact()],
  tone: nth > 0 ? 'warning' : '',
  site: SITE,
  ...more
});

export const section = (more: Partial<T.Section> = {}): T.Section => ({
  key: 'compiles',
  title: 'Compiles',
  summary: '2 compiles, 1 recompile',
  facts: [],
  charts: [],
  columns: ['compile', 'line', 'took', 'cause'],
  rows: [],
  items: [item(1), item(0)],
  problems: [],
  notes: [],
  ...more
});

export const page = (more: Partial<T.Page> = {}): T.Page => ({
  v: T.RECORD_VERSION,
  id: 'run-1',
  name: 'text-classifier',
  live: true,
  background: false,
  state: 'training',
  symbol: '●',
  tone: 'live',
  where: '1 rank on XLA:CPU',
  detail: '',
  elapsed: '1 min 00 s',
  progress: { done: 440, total: 1000, text: '440 of 1,000 steps · about 12 s left' },
  failure: null,
  charts: [chart()],
  compiled_at: [1],
  figures: [
    { label: 'Steps', value: '440', note: '', hint: '', tone: '' },
    { label: 'Step time', value: '41 ms', note: 'median', hint: 'Without compiles.', tone: '' },
    { label: 'Compiles', value: '2', note: '', hint: '', tone: '' },
    { label: 'Recompiles', value: '1', note: '', hint: '', tone: 'warning' }
  ],
  problems: [problem()],
  sections: [
    section(),
    section({
      key: 'ranks',
      title: 'Ranks',
      summary: '1 rank',
      items: [],
      columns: ['rank', 'state'],
      rows: [{ cells: ['0', 'training'], tone: '', site: null }],
      notes: ['Host memory now.']
    })
  ],
  footer: 'Run run-1.',
  ...more
});

/** The same run when it is over. */
export const done = (more: Partial<T.Page> = {}): T.Page =>
  page({ live: false, state: 'done', symbol: '✓', tone: 'ok', progress: null, ...more });

const ENVELOPE = { protocol: T.PROTOCOL, v: T.VERSION } as const;

export const messages = {
  hello: (more: Partial<T.HelloMessage> = {}): T.HelloMessage => ({
    ...ENVELOPE,
    type: 'hello',
    version: '0.1.0',
    python_v: 1,
    host: {
      title: 'XLA:CPU rehearsal',
      rehearsal: true,
      chips: null,
      detail: 'torch_xla 2.9.0'
    },
    run: null,
    live: false,
    answers: true,
    ...more
  }),
  here: (run: string, seq: number): T.HeartbeatMessage => ({ ...ENVELOPE, type: 'here', run, seq }),
  run: (seq: number, record: T.Page, request: string | null = null): T.RunMessage => ({
    ...ENVELOPE,
    type: 'run',
    seq,
    record,
    request
  }),
  /** These fields are others now. */
  update: (
    after: number,
    fields: Partial<T.Page> = {},
    more: Partial<T.UpdateMessage> = {}
  ): T.UpdateMessage => ({
    ...ENVELOPE,
    type: 'update',
    run: 'run-1',
    seq: after + 1,
    after,
    patch: {
      o: Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, { '=': value }]))
    },
    ...more
  }),
  runs: (request: string | null = null): T.RunsMessage => ({
    ...ENVELOPE,
    type: 'runs',
    request,
    runs: [
      {
        id: 'run-0',
        name: 'earlier',
        status: 'done',
        created: 1795239000,
        seconds: 54.2,
        workers: 1,
        steps: 440,
        compiles: 8,
        recompiles: 6,
        value: 'loss 0.125',
        curve: [2, 1, 'nan', 0.125]
      }
    ]
  }),
  compared: (request: string | null): T.ComparedMessage => ({
    ...ENVELOPE,
    type: 'compared',
    request,
    runs: ['run-0', 'run-1'],
    comparison: {
      title: 'Two runs',
      runs: ['earlier', 'later'],
      different: [{ label: 'Steps', cells: ['440', '220'] }],
      equal: [{ label: 'Device', cells: ['XLA:CPU', 'XLA:CPU'] }],
      charts: [chart(), chart({ points: [] })],
      notes: ['Numbers within 0.1 % are equal.']
    }
  }),
  findings: (
    request: string | null = null,
    findings: T.Problem[] = [rule()]
  ): T.FindingsMessage => ({
    ...ENVELOPE,
    type: 'findings',
    request,
    findings,
    checked: '5 cells'
  }),
  profile: (...lines: T.Problem[]): T.ProfileMessage => ({
    ...ENVELOPE,
    type: 'profile',
    lines,
    profiled: 'train on v5litepod-8'
  }),
  stopping: (run: string, request: string | null = null): T.StoppingMessage => ({
    ...ENVELOPE,
    type: 'stopping',
    run,
    request
  }),
  problem: (request: string | null): T.ProblemMessage => ({
    ...ENVELOPE,
    type: 'problem',
    what: 'There is no such run.',
    why: 'Its folder is gone.',
    todo: 'Read the list again.',
    request
  })
};

/** A way to a kernel that is not there: it keeps what was sent. */
export class FakeChannel implements IChannel {
  open = true;
  busy = false;
  interrupted = 0;
  sent: { query: T.FrontEndRequest; request: string }[] = [];

  send(query: T.FrontEndRequest, request: string): void {
    this.sent.push({ query, request });
  }

  interrupt(): void {
    this.interrupted += 1;
  }

  /** The newest request of a type. */
  last(type: T.FrontEndRequest['type']): { query: T.FrontEndRequest; request: string } {
    const found = this.sent.filter(each => each.query.type === type).pop();
    if (found === undefined) {
      throw new Error(`no ${type} was sent`);
    }
    return found;
  }

  count(type: T.FrontEndRequest['type']): number {
    return this.sent.filter(each => each.query.type === type).length;
  }
}
