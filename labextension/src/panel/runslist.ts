// When the list of runs is read.

import * as React from 'react';
import { KernelRuns } from '../model';

/** Ask when the list is first seen, and when it is seen after the end of a run. Not while one goes on: the kernel reads a
 * long list in the thread that waits for the training. */
export function useListOfRuns(runs: KernelRuns | null, visible: boolean): void {
  const [asked] = React.useState(() => new WeakMap<KernelRuns, string>());
  const ready = visible && runs !== null && runs.connection === 'connected';
  const idle = ready && !runs.deaf && !goesOn(runs);
  const newest = runs?.latest?.id ?? '';
  React.useEffect(() => {
    if (runs !== null && idle && asked.get(runs) !== newest) {
      runs.refreshRuns(true);
      if (runs.waitsFor('runs')) {
        asked.set(runs, newest);
      }
    }
  }, [asked, runs, idle, newest]);
}

/** Also where the kernel has told of a run whose record is not here yet. */
function goesOn({ live, hello, latest }: KernelRuns): boolean {
  return live || (hello?.live === true && latest === null);
}
