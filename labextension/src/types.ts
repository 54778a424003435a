// The messages between kernel and front end, and a saved run: the mirror of the Python dataclasses in
// tpu_magics/runs/events.py, panel/model_view.py and panel/messages.py.
//
// Each `export interface` that is named as a dataclass has exactly its fields; tests/test_labextension.py compares.
// null means unknown, never zero.

export const PROTOCOL = 'tpu_magics';
/** Name of the comm's target. */
export const TARGET = 'tpu_magics';
export const VERSION = 1;
export const RECORD_VERSION = 1;
export const MIME_TYPE = 'application/vnd.tpu-magics.run+json';

/** A DOM event by which an output asks for a line of its notebook (`detail`: a Site); prevented: it was shown. */
export const SITE_EVENT = 'tpu-magics:site';
/** What could be shown of a place: its line; its cell, whose text has changed; nothing, as no notebook has it. */
export type Reached = 'line' | 'cell' | 'nothing';

/** The event's detail. Who shows the place says what came of it. */
export interface Sought {
  site: Site;
  reached: Reached;
}

/** JSON has no such numbers: "nan", "inf" and "-inf" stand for them. */
export type Num = number | 'nan' | 'inf' | '-inf';

// -- runs/events.py --------------------------------------------------------------------------------------------------

export interface Site {
  id: number;
  path: string;
  line: number;
  function: string;
  code: string;
  cell_id: string;
}

export interface Input {
  name: string;
  shape: number[];
  dtype: string;
}

export interface Compile {
  t: Num;
  rank: number;
  seconds: Num | null;
  graph: string;
  site: Site;
  nth: number;
  recompile: boolean;
  inputs: Input[];
  nearest: number | null;
  difference: string[];
  cause: string;
  text: string;
  fix: string;
  memory: { [use: string]: number } | null;
  host_collective: boolean;
  trigger: string;
  step: number;
  pieces: number;
  by_rank: boolean;
  part?: string;
}

export interface Transfer {
  t: Num;
  rank: number;
  site: Site;
  count: number;
  seconds: Num;
  code: string;
  text: string;
  fix: string;
}

export interface Read {
  t: Num;
  rank: number;
  site: Site;
  count: number;
  seconds: Num;
  code: string;
}

export interface Fallback {
  t: Num;
  rank: number;
  op: string;
  count: number;
}

export interface Cache {
  t: Num;
  rank: number;
  hits: number;
  misses: number;
  path: string;
  text: string;
}

export interface Mesh {
  t: Num;
  rank: number;
  shape: number[];
  axes: string[];
  devices: number;
  virtual: boolean;
  sharded: number | null;
  replicated: number | null;
  sharded_bytes: number;
  replicated_bytes: number;
  text: string;
}

export interface Precision {
  t: Num;
  rank: number;
  asked: string;
  source: string;
  ops: number;
  share: Num | null;
  parameters: { [type: string]: number };
  graph: string;
  agrees: boolean;
  text: string;
  notes: string[];
}

export interface Batch {
  t: Num;
  rank: number;
  per_device: number | null;
  accumulation: number | null;
  ranks: number;
}

export interface Divergence {
  t: Num;
  rank: number;
  ranks: number[];
  nth: number;
  graphs: { [rank: string]: string };
  text: string;
}

export interface Metrics {
  t: Num;
  rank: number;
  file: string;
  number: number;
  compiles: number | null;
  compile_seconds: Num | null;
  executions: number | null;
  execute_seconds: Num | null;
}

export interface RuleFinding {
  t: Num;
  rank: number;
  code: string;
  group: string;
  site: Site;
  column: number;
  message: string;
  why: string;
  fix: string;
  advice: boolean;
}

// -- panel/model_view.py ---------------------------------------------------------------------------------------------

export interface CompileEntry {
  key: string;
  rank: number;
  compile: Compile;
}

export interface CauseCount {
  count: number;
  seconds: Num;
  newest: Compile;
}

export interface Point {
  step: number;
  value: Num;
  low: Num;
  high: Num;
}

export interface ValueSeries {
  name: string;
  last: number | string;
  step: number;
  n: number;
  first: Num | null;
  low: Num | null;
  high: Num | null;
  not_finite_at: number | null;
  points: Point[];
}

export interface RankView {
  rank: number;
  state: string;
  steps: number | null;
  steps_per_second: Num | null;
  compiles: number | null;
  recompiles: number | null;
  rss: number | null;
  pss: number | null;
  peak_rss: number | null;
  peak_pss: number | null;
  hbm_used: number | null;
  hbm_total: number | null;
  values: { [name: string]: number | string };
  exit: string;
  collectives: Num | null;
  collectives_share: Num | null;
  busy_share: Num | null;
  host: string;
}

export interface Notice {
  state: string;
  text: string;
  ranks: number[];
}

export interface RunFailure {
  what: string;
  why: string;
  todo: string;
  details: string[];
}

export interface RunView {
  id: string;
  name: string;
  path: string;
  state: string;
  detail: string;
  live: boolean;
  created: Num | null;
  elapsed: Num | null;
  device: string;
  lead: number;
  ranks: RankView[];
  steps: number | null;
  max_steps: number | null;
  steps_per_second: Num | null;
  rates: Num[];
  step_seconds: Num | null;
  compiled_steps: number;
  warming_up: string;
  compiles: number | null;
  compiles_missing: string;
  recompiles: number | null;
  expected?: number;
  at_least: boolean;
  pieces: number;
  compiling: Num | null;
  compiling_share: Num | null;
  executing: Num | null;
  waiting: Num | null;
  compile_log: CompileEntry[];
  causes: CauseCount[];
  asked: string;
  precision: Precision | null;
  batch: Batch | null;
  memory_total: number | null;
  memory_curve: Num[];
  transfers: Transfer[];
  reads: Read[];
  fallbacks: Fallback[];
  cache: Cache | null;
  values: ValueSeries[];
  divergences: Divergence[];
  notices: Notice[];
  findings: RuleFinding[];
  failure: RunFailure | null;
  models: string[];
  plan: { [option: string]: unknown };
  rehearsed: boolean;
  spmd: boolean;
  mesh: Mesh | null;
  collectives: Num | null;
  collectives_share: Num | null;
  n_collectives: number;
  metrics: Metrics | null;
}

// -- what Python has put into words ----------------------------------------------------------------------------------

/** How serious something is; a word always says the same. */
export type Tone = '' | 'ok' | 'warning' | 'broken';

export interface Figure {
  label: string;
  value: string;
  beside: string;
  amber: boolean;
}

export interface Fact {
  label: string;
  lines: string[];
  state: string;
  mark: string;
  code: string;
}

export interface RankTable {
  columns: string[];
  rows: string[][];
  notes: string[];
}

export interface NoticeText {
  word: string;
  text: string;
  state: string;
}

export interface FailureText {
  facts: Fact[];
  lines: string[];
}

/** How far a rehearsal is like a run on a TPU. */
export interface RehearsalNote {
  short: string;
  facts: Fact[];
}

export interface RunTexts {
  state: string;
  tone: string;
  notes: string;
  figures: Figure[];
  facts: Fact[];
  compiles: string;
  causes: { [code: string]: string };
  ranks: RankTable;
  notices: NoticeText[];
  failure: FailureText | null;
  likeness: RehearsalNote | null;
  footer: string;
}

/** A whole run, over the comm and in a saved notebook. */
export interface RunRecord {
  v: number;
  view: RunView;
  said: RunTexts;
}

export interface KernelHost {
  title: string;
  rehearsal: boolean;
  chips: number | null;
  detail: string;
}

/** An earlier run in a list. */
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
}

export interface ComparedRow {
  cells: string[];
  state: string;
}

export interface ComparedTable {
  title: string;
  columns: string[] | null;
  rows: ComparedRow[];
  notes: string[];
}

// -- kernel -> front end ---------------------------------------------------------------------------------------------

interface Envelope<T extends string> {
  protocol: typeof PROTOCOL;
  v: typeof VERSION;
  type: T;
}

export interface HelloMessage extends Envelope<'hello'> {
  version: string;
  python_v: number;
  host: KernelHost | null;
  run: string | null;
  live: boolean;
  answers: boolean;
}

export interface HeartbeatMessage extends Envelope<'here'> {
  run: string;
  seq: number;
}

export interface RunMessage extends Envelope<'run'> {
  seq: number;
  record: RunRecord;
  request: string | null;
}

export interface UpdateMessage extends Envelope<'update'> {
  run: string;
  seq: number;
  after: number;
  view: Partial<RunView>;
  said: Partial<RunTexts>;
  log: CompileEntry[];
}

export interface RunsMessage extends Envelope<'runs'> {
  runs: RunLine[];
  request: string | null;
}

export interface ComparedMessage extends Envelope<'compared'> {
  runs: string[];
  table: ComparedTable;
  request: string | null;
}

export interface FindingsMessage extends Envelope<'findings'> {
  findings: RuleFinding[];
  checked: string;
  request: string | null;
}

export interface StoppingMessage extends Envelope<'stopping'> {
  run: string;
  request: string | null;
}

export interface ProblemMessage extends Envelope<'problem'> {
  what: string;
  why: string;
  todo: string;
  request: string | null;
}

export type KernelMessage =
  | HelloMessage
  | HeartbeatMessage
  | RunMessage
  | UpdateMessage
  | RunsMessage
  | ComparedMessage
  | FindingsMessage
  | StoppingMessage
  | ProblemMessage;

// -- front end -> kernel ---------------------------------------------------------------------------------------------

export interface CheckedCell {
  id: string;
  number: number | null;
  source: string;
}

/** Each is sent with the envelope and a `request` of its own. */
export type FrontEndRequest =
  | { type: 'hello' }
  | { type: 'open'; run: string }
  | { type: 'runs' }
  | { type: 'compare'; runs: [string, string] }
  | { type: 'stop'; run: string }
  | { type: 'check'; cells: CheckedCell[] }
  | { type: 'rate'; seconds: number };
