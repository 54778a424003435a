// What becomes of a request whose answer does not come, or cannot be read.

import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { KernelRuns } from '../model';
import { FORGOTTEN } from '../requests';
import { FakeChannel, messages } from './sample';

let channel: FakeChannel;
let runs: KernelRuns;

beforeEach(() => {
  vi.useFakeTimers();
  channel = new FakeChannel();
  runs = new KernelRuns('kernel', channel);
  runs.connected();
  runs.receive(messages.hello());
});

afterEach(() => vi.useRealTimers());

it('is over with an answer that cannot be read', () => {
  const warned = vi.spyOn(console, 'warn').mockImplementation(() => undefined);
  let told = 0;
  runs.refreshRuns();
  runs.changed.connect(() => (told += 1));
  runs.receive({ ...messages.runs(channel.last('runs').request), runs: null });
  expect(runs.waitsFor('runs')).toBe(false);
  expect(told).toBe(1);
  runs.check([]);
  runs.receive({ ...messages.findings(channel.last('check').request), v: 2 });
  expect(runs.waitsFor('check')).toBe(false);
  warned.mockRestore();
});

it('is forgotten after a time, and the buttons are told', () => {
  runs.check([]);
  let told = 0;
  runs.changed.connect(() => (told += 1));
  vi.advanceTimersByTime(FORGOTTEN - 1_000);
  expect(runs.waitsFor('check')).toBe(true);
  runs.compare('run-0', 'run-1');
  told = 0;
  vi.advanceTimersByTime(2 * FORGOTTEN);
  expect([runs.waitsFor('check'), runs.waitsFor('compare')]).toEqual([false, false]);
  expect(told).toBe(2);
  expect(vi.getTimerCount()).toBe(0);
});

it('waits as long as a cell holds a kernel that answers later', () => {
  runs.receive(messages.hello({ answers: false }));
  channel.busy = true;
  runs.check([]);
  vi.advanceTimersByTime(100 * FORGOTTEN);
  expect(runs.waitsFor('check')).toBe(true);
  runs.receive(messages.findings(channel.last('check').request));
  expect(runs.askedFor?.checked).toBe('5 cells');
});

it('takes a problem away only if a person has made it', () => {
  runs.open('run-0');
  runs.receive(messages.problem(channel.last('open').request));
  runs.refreshRuns(true);
  runs.connected();
  runs.receive(messages.hello({ run: 'run-1', live: true }));
  expect(channel.count('open')).toBe(2);
  expect(runs.problem?.what).toBe('There is no such run.');
  runs.refreshRuns();
  expect(runs.problem).toBeNull();
});
