import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { KernelRuns } from '../model';
import { PATIENCE, stopRun } from '../stopping';
import { done, FakeChannel, messages, page } from './sample';

describe('stopping a run', () => {
  let channel: FakeChannel;
  let runs: KernelRuns;

  const began = (answers: boolean, background = false): void => {
    channel = new FakeChannel();
    channel.busy = true;
    runs = new KernelRuns('kernel', channel);
    runs.receive(messages.hello({ answers, run: 'run-1', live: true }));
    runs.receive(messages.run(1, page({ background })));
  };

  beforeEach(() => {
    vi.useFakeTimers();
    began(true);
  });
  afterEach(() => vi.useRealTimers());

  it('asks the kernel, and is content with its answer', async () => {
    const stopped = stopRun(runs);
    expect(channel.count('stop')).toBe(1);
    runs.receive(messages.stopping('run-1'));
    expect(await stopped).toBe('stopping');
    await vi.advanceTimersByTimeAsync(PATIENCE);
    expect(channel.interrupted).toBe(0);
  });

  it('interrupts a busy kernel that does not answer in time', async () => {
    const stopped = stopRun(runs);
    await vi.advanceTimersByTimeAsync(PATIENCE - 1);
    expect(channel.interrupted).toBe(0);
    await vi.advanceTimersByTimeAsync(1);
    expect(await stopped).toBe('interrupted');
    expect(channel.interrupted).toBe(1);
  });

  it('takes the late answer of a kernel that it has interrupted for no problem', async () => {
    const stopped = stopRun(runs);
    await vi.advanceTimersByTimeAsync(PATIENCE);
    await stopped;
    runs.receive(messages.problem(channel.last('stop').request));
    expect(runs.problem).toBeNull();
  });

  it('interrupts once only where the kernel is known to answer nothing', async () => {
    began(false);
    expect(await stopRun(runs)).toBe('interrupted');
    await vi.advanceTimersByTimeAsync(PATIENCE);
    expect(channel.interrupted).toBe(1);
  });

  it('interrupts no other cell for the sake of a background run', async () => {
    began(false, true);
    const stopped = stopRun(runs);
    await vi.advanceTimersByTimeAsync(PATIENCE);
    expect(await stopped).toBe('unanswered');
    expect(channel.interrupted).toBe(0);
  });

  it('interrupts although the status says idle, as after a message that was answered meanwhile', async () => {
    channel.busy = false;
    const stopped = stopRun(runs);
    await vi.advanceTimersByTimeAsync(PATIENCE);
    expect(await stopped).toBe('interrupted');
    expect(channel.interrupted).toBe(1);
  });

  it('asks for nothing without a live run', async () => {
    runs.receive(messages.run(2, done()));
    await stopRun(runs);
    expect(channel.count('stop')).toBe(0);
  });
});
