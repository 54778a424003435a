// Stopping a run from outside its cell.

import { KernelRuns } from './model';

/** Milliseconds that a kernel has for its answer. */
export const PATIENCE = 1500;

/** Ask for a stop, and interrupt the kernel where a cell trains and no answer comes: an interrupt arrives always.
 *
 * Returns what came of it; "unanswered": the run goes on in the background, and no answer came all the same. */
export async function stopRun(
  runs: KernelRuns
): Promise<'stopping' | 'interrupted' | 'unanswered'> {
  const run = runs.latest?.id;
  if (run === undefined || !runs.live) {
    return 'stopping';
  }
  // Another cell than the run's own may be at work then, and is not meant.
  const trains = runs.trains;
  const interrupts = runs.deaf && trains;
  runs.stop();
  if (interrupts) {
    return 'interrupted';
  }
  const said = (): boolean =>
    !runs.waitsFor('stop') || !runs.live || !runs.has(run) || runs.problem !== null;
  if (await within(runs, said)) {
    return 'stopping';
  }
  if (!trains) {
    return 'unanswered';
  }
  runs.forgetStop();
  runs.interrupt();
  return 'interrupted';
}

/** Whether it comes true in time. */
function within(runs: KernelRuns, said: () => boolean): Promise<boolean> {
  return new Promise(resolve => {
    const settle = (): void => {
      runs.changed.disconnect(look);
      clearTimeout(timer);
      resolve(said());
    };
    const look = (): void => {
      if (said()) {
        settle();
      }
    };
    const timer = setTimeout(settle, PATIENCE);
    runs.changed.connect(look);
    look();
  });
}
