// The validators of a record's parts: each checks all fields of its interface, which the compiler enforces.

import {
  anything,
  Check,
  dict,
  flag,
  list,
  num,
  number,
  numberOrText,
  object,
  orMissing,
  orNull,
  text
} from './checks';
import * as T from './types';

const about = { t: num, rank: number };

export const site: Check<T.Site> = object<T.Site>({
  id: number,
  path: text,
  line: number,
  function: text,
  code: text,
  cell_id: text
});

const compile = object<T.Compile>({
  ...about,
  seconds: orNull(num),
  graph: text,
  site,
  nth: number,
  recompile: flag,
  inputs: list(object<T.Input>({ name: text, shape: list(number), dtype: text })),
  nearest: orNull(number),
  difference: list(text),
  cause: text,
  text,
  fix: text,
  memory: orNull(dict(number)),
  host_collective: flag,
  trigger: text,
  step: number,
  pieces: number,
  by_rank: flag,
  part: orMissing(text)
});

export const compileEntry = object<T.CompileEntry>({ key: text, rank: number, compile });

const read = { ...about, site, count: number, seconds: num, code: text };

const mesh = object<T.Mesh>({
  ...about,
  shape: list(number),
  axes: list(text),
  devices: number,
  virtual: flag,
  sharded: orNull(number),
  replicated: orNull(number),
  sharded_bytes: number,
  replicated_bytes: number,
  text
});

const precision = object<T.Precision>({
  ...about,
  asked: text,
  source: text,
  ops: number,
  share: orNull(num),
  parameters: dict(number),
  graph: text,
  agrees: flag,
  text,
  notes: list(text)
});

const metrics = object<T.Metrics>({
  ...about,
  file: text,
  number,
  compiles: orNull(number),
  compile_seconds: orNull(num),
  executions: orNull(number),
  execute_seconds: orNull(num)
});

export const finding = object<T.RuleFinding>({
  ...about,
  code: text,
  group: text,
  site,
  column: number,
  message: text,
  why: text,
  fix: text,
  advice: flag
});

const series = object<T.ValueSeries>({
  name: text,
  last: numberOrText,
  step: number,
  n: number,
  first: orNull(num),
  low: orNull(num),
  high: orNull(num),
  not_finite_at: orNull(number),
  points: list(object<T.Point>({ step: number, value: num, low: num, high: num }))
});

const rank = object<T.RankView>({
  rank: number,
  state: text,
  steps: orNull(number),
  steps_per_second: orNull(num),
  compiles: orNull(number),
  recompiles: orNull(number),
  rss: orNull(number),
  pss: orNull(number),
  peak_rss: orNull(number),
  peak_pss: orNull(number),
  hbm_used: orNull(number),
  hbm_total: orNull(number),
  values: dict(numberOrText),
  exit: text,
  collectives: orNull(num),
  collectives_share: orNull(num),
  busy_share: orNull(num),
  host: text
});

const batch = object<T.Batch>({
  ...about,
  per_device: orNull(number),
  accumulation: orNull(number),
  ranks: number
});

const divergence = object<T.Divergence>({
  ...about,
  ranks: list(number),
  nth: number,
  graphs: dict(text),
  text
});

export const view = {
  id: text,
  name: text,
  path: text,
  state: text,
  detail: text,
  live: flag,
  created: orNull(num),
  elapsed: orNull(num),
  device: text,
  lead: number,
  ranks: list(rank),
  steps: orNull(number),
  max_steps: orNull(number),
  steps_per_second: orNull(num),
  rates: list(num),
  step_seconds: orNull(num),
  compiled_steps: number,
  warming_up: text,
  compiles: orNull(number),
  compiles_missing: text,
  recompiles: orNull(number),
  expected: orMissing(number),
  at_least: flag,
  pieces: number,
  compiling: orNull(num),
  compiling_share: orNull(num),
  executing: orNull(num),
  waiting: orNull(num),
  compile_log: list(compileEntry),
  causes: list(object<T.CauseCount>({ count: number, seconds: num, newest: compile })),
  asked: text,
  precision: orNull(precision),
  batch: orNull(batch),
  memory_total: orNull(number),
  memory_curve: list(num),
  transfers: list(object<T.Transfer>({ ...read, text, fix: text })),
  reads: list(object<T.Read>(read)),
  fallbacks: list(object<T.Fallback>({ ...about, op: text, count: number })),
  cache: orNull(object<T.Cache>({ ...about, hits: number, misses: number, path: text, text })),
  values: list(series),
  divergences: list(divergence),
  notices: list(object<T.Notice>({ state: text, text, ranks: list(number) })),
  findings: list(finding),
  failure: orNull(object<T.RunFailure>({ what: text, why: text, todo: text, details: list(text) })),
  models: list(text),
  plan: dict(anything),
  rehearsed: flag,
  spmd: flag,
  mesh: orNull(mesh),
  collectives: orNull(num),
  collectives_share: orNull(num),
  n_collectives: number,
  metrics: orNull(metrics)
};

const fact = object<T.Fact>({
  label: text,
  lines: list(text),
  state: text,
  mark: text,
  code: text
});

export const said = {
  state: text,
  tone: text,
  notes: text,
  figures: list(object<T.Figure>({ label: text, value: text, beside: text, amber: flag })),
  facts: list(fact),
  compiles: text,
  causes: dict(text),
  ranks: object<T.RankTable>({ columns: list(text), rows: list(list(text)), notes: list(text) }),
  notices: list(object<T.NoticeText>({ word: text, text, state: text })),
  failure: orNull(object<T.FailureText>({ facts: list(fact), lines: list(text) })),
  likeness: orNull(object<T.RehearsalNote>({ short: text, facts: list(fact) })),
  footer: text
};

export const runRecord = object<T.RunRecord>({
  v: number,
  view: object<T.RunView>(view),
  said: object<T.RunTexts>(said)
});
