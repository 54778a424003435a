// The messages between kernel and front end, and the page of a run.
//
// Made by scripts/typescript.py from runs/events.py (Site) and from page.py, protocol.py, messages.py and requests.py
// in tpu_magics/panel, where each field is explained. Do not edit it. null means unknown, never zero.

export const PROTOCOL = 'tpu_magics';
export const TARGET = 'tpu_magics';
export const VERSION = 1;
export const RECORD_VERSION = 1;
export const MIME_TYPE = 'application/vnd.tpu-magics.run+json';

/** JSON has no such numbers: "nan", "inf" and "-inf" stand for them. */
export type Num = number | 'nan' | 'inf' | '-inf';

export type Tone = '' | 'live' | 'ok' | 'info' | 'warning' | 'broken';

export type Kind =
  | 'recompile'
  | 'rule'
  | 'read'
  | 'host'
  | 'precision'
  | 'memory'
  | 'rank'
  | 'message';

export type Axis = 'number' | 'seconds' | 'bytes' | 'rate';

export interface Progress {
  done: number;
  total: number;
  text: string;
}

export interface FailureText {
  tone: Tone;
  what: string;
  why: string;
  todo: string;
  lines: string[];
}

export interface Chart {
  key: string;
  title: string;
  caption: string;
  points: [number, Num, Num, Num][];
  axis: Axis;
  x: string;
  marked: boolean;
  warning: string;
  saved: number[];
}

export interface Figure {
  label: string;
  value: string;
  note: string;
  hint: string;
  tone: Tone;
}

export interface Site {
  id: number;
  path: string;
  line: number;
  function: string;
  code: string;
  cell_id: string;
}

export interface Problem {
  key: string;
  kind: Kind;
  tone: Tone;
  title: string;
  text: string;
  fix: string;
  count: string;
  times: number;
  badge: string;
  site: Site | null;
  differences: string[];
}

export interface Fact {
  label: string;
  lines: string[];
  tone: Tone;
  mark: string;
  code: string;
}

export interface SectionRow {
  cells: string[];
  tone: Tone;
  site: Site | null;
}

export interface Item {
  key: string;
  cells: string[];
  facts: Fact[];
  tone: Tone;
  site: Site | null;
}

export interface Section {
  key: string;
  title: string;
  summary: string;
  facts: Fact[];
  charts: Chart[];
  columns: string[];
  rows: SectionRow[];
  items: Item[];
  problems: Problem[];
  notes: string[];
}

export interface Page {
  v: number;
  id: string;
  name: string;
  live: boolean;
  background: boolean;
  state: string;
  symbol: string;
  tone: Tone;
  where: string;
  detail: string;
  elapsed: string;
  progress: Progress | null;
  failure: FailureText | null;
  charts: Chart[];
  compiled_at: number[];
  figures: Figure[];
  problems: Problem[];
  sections: Section[];
  footer: string;
}

export interface KernelHost {
  title: string;
  rehearsal: boolean;
  chips: number | null;
  detail: string;
}

export interface HelloMessage {
  protocol: string;
  v: number;
  type: 'hello';
  version: string;
  python_v: number;
  host: KernelHost | null;
  run: string | null;
  live: boolean;
  answers: boolean;
}

export interface HeartbeatMessage {
  protocol: string;
  v: number;
  type: 'here';
  run: string;
  seq: number;
}

export interface RunMessage {
  protocol: string;
  v: number;
  type: 'run';
  seq: number;
  record: Page;
  request: string | null;
}

export interface UpdateMessage {
  protocol: string;
  v: number;
  type: 'update';
  run: string;
  seq: number;
  after: number;
  patch: unknown;
}

export interface RunLine {
  id: string;
  name: string;
  status: string;
  created: Num | null;
  seconds: Num | null;
  workers: number | null;
  steps: number | null;
  compiles: number | null;
  recompiles: number | null;
  value: string;
  curve: Num[];
}

export interface RunsMessage {
  protocol: string;
  v: number;
  type: 'runs';
  runs: RunLine[];
  request: string | null;
}

export interface ComparedRow {
  label: string;
  cells: string[];
}

export interface Comparison {
  title: string;
  runs: string[];
  different: ComparedRow[];
  equal: ComparedRow[];
  charts: Chart[];
  notes: string[];
}

export interface ComparedMessage {
  protocol: string;
  v: number;
  type: 'compared';
  runs: string[];
  comparison: Comparison;
  request: string | null;
}

export interface FindingsMessage {
  protocol: string;
  v: number;
  type: 'findings';
  findings: Problem[];
  checked: string;
  request: string | null;
}

export interface ProfileMessage {
  protocol: string;
  v: number;
  type: 'profile';
  lines: Problem[];
  profiled: string;
}

export interface StoppingMessage {
  protocol: string;
  v: number;
  type: 'stopping';
  run: string;
  request: string | null;
}

export interface ProblemMessage {
  protocol: string;
  v: number;
  type: 'problem';
  what: string;
  why: string;
  todo: string;
  request: string | null;
}

export interface HelloRequest {
  type: 'hello';
}

export interface OpenRequest {
  type: 'open';
  run: string;
}

export interface RunsRequest {
  type: 'runs';
}

export interface CompareRequest {
  type: 'compare';
  runs: [string, string];
}

export interface StopRequest {
  type: 'stop';
  run: string;
}

export interface CheckedCell {
  id: string;
  number: number | null;
  source: string;
}

export interface CheckRequest {
  type: 'check';
  cells: CheckedCell[];
}

export interface RateRequest {
  type: 'rate';
  seconds: Num;
}

export type KernelMessage =
  | HelloMessage
  | HeartbeatMessage
  | RunMessage
  | UpdateMessage
  | RunsMessage
  | ComparedMessage
  | FindingsMessage
  | ProfileMessage
  | StoppingMessage
  | ProblemMessage;

/** Each is sent with the protocol, its version and a `request` of its own. */
export type FrontEndRequest =
  | HelloRequest
  | OpenRequest
  | RunsRequest
  | CompareRequest
  | StopRequest
  | CheckRequest
  | RateRequest;

/** The words of a field that has few. */
export const WORDS = {
  Tone: ['', 'live', 'ok', 'info', 'warning', 'broken'],
  Kind: ['recompile', 'rule', 'read', 'host', 'precision', 'memory', 'rank', 'message'],
  Axis: ['number', 'seconds', 'bytes', 'rate']
} as const;

/** How each field is checked as it arrives (checks.ts). */
export const FORMS = {
  Progress: { done: 'number', total: 'number', text: 'string' },
  FailureText: { tone: 'Tone', what: 'string', why: 'string', todo: 'string', lines: 'string[]' },
  Chart: {
    key: 'string',
    title: 'string',
    caption: 'string',
    points: '[number, Num, Num, Num][]',
    axis: 'Axis',
    x: 'string',
    marked: 'boolean',
    warning: 'string',
    saved: 'number[]'
  },
  Figure: { label: 'string', value: 'string', note: 'string', hint: 'string', tone: 'Tone' },
  Site: {
    id: 'number',
    path: 'string',
    line: 'number',
    function: 'string',
    code: 'string',
    cell_id: 'string'
  },
  Problem: {
    key: 'string',
    kind: 'Kind',
    tone: 'Tone',
    title: 'string',
    text: 'string',
    fix: 'string',
    count: 'string',
    times: 'number',
    badge: 'string',
    site: 'Site | null',
    differences: 'string[]'
  },
  Fact: { label: 'string', lines: 'string[]', tone: 'Tone', mark: 'string', code: 'string' },
  SectionRow: { cells: 'string[]', tone: 'Tone', site: 'Site | null' },
  Item: { key: 'string', cells: 'string[]', facts: 'Fact[]', tone: 'Tone', site: 'Site | null' },
  Section: {
    key: 'string',
    title: 'string',
    summary: 'string',
    facts: 'Fact[]',
    charts: 'Chart[]',
    columns: 'string[]',
    rows: 'SectionRow[]',
    items: 'Item[]',
    problems: 'Problem[]',
    notes: 'string[]'
  },
  Page: {
    v: 'number',
    id: 'string',
    name: 'string',
    live: 'boolean',
    background: 'boolean',
    state: 'string',
    symbol: 'string',
    tone: 'Tone',
    where: 'string',
    detail: 'string',
    elapsed: 'string',
    progress: 'Progress | null',
    failure: 'FailureText | null',
    charts: 'Chart[]',
    compiled_at: 'number[]',
    figures: 'Figure[]',
    problems: 'Problem[]',
    sections: 'Section[]',
    footer: 'string'
  },
  KernelHost: { title: 'string', rehearsal: 'boolean', chips: 'number | null', detail: 'string' },
  HelloMessage: {
    version: 'string',
    python_v: 'number',
    host: 'KernelHost | null',
    run: 'string | null',
    live: 'boolean',
    answers: 'boolean'
  },
  HeartbeatMessage: { run: 'string', seq: 'number' },
  RunMessage: { seq: 'number', record: 'Page', request: 'string | null' },
  UpdateMessage: { run: 'string', seq: 'number', after: 'number', patch: 'unknown' },
  RunLine: {
    id: 'string',
    name: 'string',
    status: 'string',
    created: 'Num | null',
    seconds: 'Num | null',
    workers: 'number | null',
    steps: 'number | null',
    compiles: 'number | null',
    recompiles: 'number | null',
    value: 'string',
    curve: 'Num[]'
  },
  RunsMessage: { runs: 'RunLine[]', request: 'string | null' },
  ComparedRow: { label: 'string', cells: 'string[]' },
  Comparison: {
    title: 'string',
    runs: 'string[]',
    different: 'ComparedRow[]',
    equal: 'ComparedRow[]',
    charts: 'Chart[]',
    notes: 'string[]'
  },
  ComparedMessage: { runs: 'string[]', comparison: 'Comparison', request: 'string | null' },
  FindingsMessage: { findings: 'Problem[]', checked: 'string', request: 'string | null' },
  ProfileMessage: { lines: 'Problem[]', profiled: 'string' },
  StoppingMessage: { run: 'string', request: 'string | null' },
  ProblemMessage: { what: 'string', why: 'string', todo: 'string', request: 'string | null' }
} as const;

/** The class of each message. */
export const MESSAGES = {
  hello: 'HelloMessage',
  here: 'HeartbeatMessage',
  run: 'RunMessage',
  update: 'UpdateMessage',
  runs: 'RunsMessage',
  compared: 'ComparedMessage',
  findings: 'FindingsMessage',
  profile: 'ProfileMessage',
  stopping: 'StoppingMessage',
  problem: 'ProblemMessage'
} as const;
