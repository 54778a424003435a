// The words of the status bar item.

import { nullTranslator } from '@jupyterlab/translation';
import { beforeEach, expect, it } from 'vitest';
import { KernelRuns } from '../model';
import { statusWords } from '../status';
import { done, FakeChannel, messages, page } from './sample';

const trans = nullTranslator.load('tpu_magics');
let runs: KernelRuns;

beforeEach(() => {
  runs = new KernelRuns('kernel', new FakeChannel());
});

const words = (): string[] => statusWords(runs, trans).map(word => word.text);
const coloured = (): string[] =>
  statusWords(runs, trans)
    .filter(word => word.tone !== '')
    .map(word => `${word.tone}: ${word.text}`);

it('is not there where nothing is loaded', () => {
  expect(words()).toEqual([]);
});

it('tells the host', () => {
  runs.receive(messages.hello());
  expect(words()).toEqual(['XLA:CPU rehearsal']);
  runs.receive(messages.hello({ host: null }));
  expect(words()).toEqual(['TPU: run %tpu_init']);
});

it('tells how the training goes, and what needs action', () => {
  runs.receive(messages.hello({ run: 'run-1', live: true }));
  runs.receive(messages.run(1, page()));
  expect(words()).toEqual(['● training', '44 %', '! Recompiles 1']);
  expect(coloured()).toEqual(['warning: ! Recompiles 1']);
  runs.receive(messages.update(1, { progress: null, figures: page().figures.slice(0, 2) }));
  expect(words()).toEqual(['● training', 'Steps 440']);
  expect(coloured()).toEqual([]);
});

it('says at once that it stops', () => {
  runs.receive(messages.run(1, page()));
  runs.stop();
  expect(words()[0]).toBe('● stopping…');
});

it('keeps the state of a run that has ended, and of one that was lost', () => {
  runs.receive(messages.hello({ run: 'run-1' }));
  runs.receive(messages.run(1, done()));
  expect(words()).toEqual(['✓ done', '! Recompiles 1']);
  runs.receive(
    messages.run(2, done({ state: 'failed', symbol: '✗', tone: 'broken', figures: [] }))
  );
  expect(coloured()).toEqual(['broken: ✗ failed']);
  runs.restarted();
  expect(words()).toEqual([]);
  runs.receive(messages.hello());
  expect(words()).toEqual(['XLA:CPU rehearsal']);
});

it('tells of another version', () => {
  runs.receive({ ...messages.here('run-1', 1), v: 2 });
  expect(words()).toEqual(['tpu_magics: other version']);
});

it('has few words, whatever comes', () => {
  runs.receive(messages.run(1, done({ progress: { done: 1, total: 0, text: '' }, figures: [] })));
  expect(words()).toEqual(['✓ done']);
});
