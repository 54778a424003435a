// Stopping a run from outside its cell.
//
// What lives here: asking, and what is done where no answer comes. What does not: the message (model.ts).

import { Kernel } from '@jupyterlab/services';
import { KernelRuns } from './model';

/** Milliseconds that a kernel has for its answer. */
export const PATIENCE = 1500;

/** Ask for a stop, and interrupt the kernel where it is busy and does not answer: an interrupt arrives always.
 *
 * Returns what came of it; "unanswered": the kernel is not busy, and did not answer all the same. */
export async function stopRun(
  runs: KernelRuns,
  kernel: Pick<Kernel.IKernelConnection, 'status' | 'interrupt'>
): Promise<'stopping' | 'interrupted' | 'unanswered'> {
  const run = runs.latest?.view;
  if (run === undefined || !runs.live) {
    return 'stopping';
  }
  // Another cell than the run's own may be at work then, and is not meant.
  const background = run.plan['background'] === true;
  const interrupts = runs.deaf && !background;
  runs.stop();
  if (interrupts) {
    return 'interrupted';
  }
  const said = (): boolean =>
    runs.stopping === run.id ||
    !runs.live ||
    runs.latest?.view.id !== run.id ||
    runs.problem !== null;
  if (await within(runs, said)) {
    return 'stopping';
  }
  if (kernel.status !== 'busy' || background) {
    return 'unanswered';
  }
  await kernel.interrupt();
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
