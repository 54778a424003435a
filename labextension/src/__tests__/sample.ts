// Records and messages for tests.

import * as T from '../types';
import { IChannel } from '../model';

export const SITE: T.Site = {
  id: 0,
  path: 'In [12]',
  line: 14,
  function: 'training_function',
  code: 'torch_xla.sync()',
  cell_id: 'abc'
};

export function compile(nth: number, more: Partial<T.Compile> = {}): T.Compile {
  return {
    t: 1795239243,
    rank: 0,
    seconds: 1.21,
    graph: `graph${nth}`,
    site: SITE,
    nth,
    recompile: nth > 0,
    inputs: [{ name: 'input_ids', shape: [32, 128 + nth], dtype: 'int64' }],
    nearest: nth > 0 ? nth - 1 : null,
    difference:
      nth > 0 ? [`input_ids now int64[32,${128 + nth}], before int64[32,${127 + nth}]`] : [],
    cause: nth > 0 ? 'input-shape' : '',
    text: nth > 0 ? 'The input input_ids has a new shape.' : '',
    fix: nth > 0 ? 'Pad the batches to a multiple of `64`.' : '',
    memory: null,
    host_collective: false,
    trigger: 'sync',
    step: 4 * nth,
    pieces: 1,
    by_rank: false,
    ...more
  };
}

export function entry(nth: number): T.CompileEntry {
  return { key: `0-0-${nth}`, rank: 0, compile: compile(nth) };
}

export function series(more: Partial<T.ValueSeries> = {}): T.ValueSeries {
  return {
    name: 'loss',
    last: 0.5,
    step: 2,
    n: 3,
    first: 2,
    low: 0.4,
    high: 2,
    not_finite_at: null,
    points: [
      { step: 0, value: 2, low: 2, high: 2 },
      { step: 1, value: 1, low: 0.8, high: 1.2 },
      { step: 2, value: 0.5, low: 0.4, high: 0.6 }
    ],
    ...more
  };
}

export function view(more: Partial<T.RunView> = {}): T.RunView {
  return {
    id: 'run-1',
    name: 'text-classifier',
    path: '/runs/run-1',
    state: 'training',
    detail: '',
    live: true,
    created: 1795239243,
    elapsed: 60,
    device: 'XLA:CPU',
    lead: 0,
    ranks: [],
    steps: 440,
    max_steps: null,
    steps_per_second: 8.58,
    rates: [8, 9, 10],
    step_seconds: 0.108,
    compiled_steps: 2,
    warming_up: '',
    compiles: 2,
    compiles_missing: '',
    recompiles: 1,
    at_least: false,
    pieces: 0,
    compiling: 3,
    compiling_share: 0.1,
    executing: 4,
    waiting: 0.5,
    compile_log: [entry(1), entry(0)],
    causes: [{ count: 1, seconds: 1.21, newest: compile(1) }],
    asked: 'bf16',
    precision: {
      t: 0,
      rank: 0,
      asked: 'bf16',
      source: '--precision',
      ops: 24,
      share: 1,
      parameters: { bf16: 39 },
      graph: '',
      agrees: true,
      text: '',
      notes: []
    },
    batch: null,
    memory_total: null,
    memory_curve: [1e8, 2e8],
    transfers: [],
    reads: [],
    fallbacks: [],
    cache: null,
    values: [series()],
    divergences: [],
    notices: [],
    findings: [],
    failure: null,
    models: [],
    plan: { background: false },
    rehearsed: false,
    spmd: false,
    mesh: null,
    collectives: null,
    collectives_share: null,
    n_collectives: 0,
    metrics: null,
    ...more
  };
}

export function said(more: Partial<T.RunTexts> = {}): T.RunTexts {
  return {
    state: '● training',
    tone: '',
    notes: '1 rank on XLA:CPU',
    figures: [{ label: 'Recompiles', value: '1', beside: '', amber: true }],
    facts: [
      {
        label: 'Precision',
        lines: ['asked bf16', 'true: 100 %'],
        state: 'ok',
        mark: 'as asked',
        code: ''
      }
    ],
    compiles: '2 compiles, 1 recompile: input-shape 1.',
    causes: { 'input-shape': 'input-shape' },
    ranks: { columns: ['rank', 'state'], rows: [['0', 'training']], notes: ['Host memory now.'] },
    notices: [{ word: '! warning', text: 'Take care.', state: 'warning' }],
    failure: null,
    likeness: null,
    footer: 'Run run-1.',
    ...more
  };
}

export function record(
  more: Partial<T.RunView> = {},
  words: Partial<T.RunTexts> = {}
): T.RunRecord {
  return { v: 1, view: view(more), said: said(words) };
}

export function finding(more: Partial<T.RuleFinding> = {}): T.RuleFinding {
  return {
    t: 0,
    rank: 0,
    code: 'TPU101',
    group: 'values',
    site: SITE,
    column: 5,
    message: 'The condition `loss > 1` reads a value.',
    why: 'The host waits.',
    fix: 'Use `torch.where`.',
    advice: false,
    ...more
  };
}

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
  run: (seq: number, whole: T.RunRecord, request: string | null = null): T.RunMessage => ({
    ...ENVELOPE,
    type: 'run',
    seq,
    record: whole,
    request
  }),
  update: (after: number, more: Partial<T.UpdateMessage> = {}): T.UpdateMessage => ({
    ...ENVELOPE,
    type: 'update',
    run: 'run-1',
    seq: after + 1,
    after,
    view: {},
    said: {},
    log: [],
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
        recompiles: 6
      }
    ]
  }),
  compared: (request: string | null): T.ComparedMessage => ({
    ...ENVELOPE,
    type: 'compared',
    request,
    runs: ['run-0', 'run-1'],
    table: { title: 'Two runs', columns: null, rows: [{ cells: ['a', 'b'], state: '' }], notes: [] }
  }),
  findings: (request: string | null = null): T.FindingsMessage => ({
    ...ENVELOPE,
    type: 'findings',
    request,
    findings: [finding()],
    checked: '5 cells'
  }),
  stopping: (run: string): T.StoppingMessage => ({
    ...ENVELOPE,
    type: 'stopping',
    run,
    request: null
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
