// The words of the status bar item.

import { nullTranslator } from '@jupyterlab/translation';
import { beforeEach, expect, it } from 'vitest';
import { KernelRuns } from '../model';
import { statusWords } from '../status';
import { FakeChannel, messages, record, view } from './sample';

const trans = nullTranslator.load('tpu_magics');
let runs: KernelRuns;

beforeEach(() => {
  runs = new KernelRuns('kernel', new FakeChannel());
});

const words = (): string[] => statusWords(runs, trans).map(word => word.text);
const amber = (): string[] =>
  statusWords(runs, trans)
    .filter(word => word.amber)
    .map(word => word.text);

it('is not there where nothing is loaded', () => {
  expect(words()).toEqual([]);
});

it('tells the host', () => {
  runs.receive(messages.hello());
  expect(words()).toEqual(['XLA:CPU rehearsal']);
  runs.receive(messages.hello({ host: null }));
  expect(words()).toEqual(['TPU: run %tpu_init']);
});

it('tells how the training goes', () => {
  runs.receive(messages.hello({ run: 'run-1', live: true }));
  runs.receive(messages.run(1, record()));
  expect(words()).toEqual([
    'XLA:CPU rehearsal',
    '● training',
    '8.58 steps/s',
    '2 compiles',
    '! 1 recompile',
    'bf16 100 %'
  ]);
  expect(amber()).toEqual(['! 1 recompile']);
});

it('is not amber before the first recompile', () => {
  runs.receive(messages.run(1, record({ recompiles: 0, at_least: true })));
  expect(words()).toContain('0+ recompiles');
  expect(amber()).toEqual([]);
});

it('says what is not available', () => {
  const missing = { steps_per_second: null, compiles: null, recompiles: null, precision: null };
  runs.receive(messages.run(1, record(missing)));
  expect(words().slice(2)).toEqual([
    'no step rate yet',
    'compiles n/a',
    'recompiles n/a',
    'bf16 n/a yet'
  ]);
});

it('tells a precision that is not the one asked for', () => {
  const found = view().precision;
  runs.receive(
    messages.run(1, record({ precision: found && { ...found, share: 0, agrees: false } }))
  );
  expect(amber()).toContain('! bf16 0 %');
});

it('keeps the state of a run that has ended, and of one that was lost', () => {
  runs.receive(messages.hello({ run: 'run-1' }));
  runs.receive(messages.run(1, record({ live: false }, { state: '✓ done' })));
  expect(words()).toEqual(['XLA:CPU rehearsal', '✓ done']);
  runs.restarted();
  expect(words()).toEqual([]);
});

it('tells of another version', () => {
  runs.receive({ ...messages.here('run-1', 1), v: 2 });
  expect(words()).toEqual(['! tpu_magics: other version']);
});
