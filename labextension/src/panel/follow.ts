// What is drawn follows the messages of a kernel: all parts of the page at the same moment.

import * as React from 'react';
import { kernels } from '../kernels';
import { KernelRuns } from '../model';
import { Page } from '../types';

const NEVER = (): void => undefined;

/** Draws again with each change of `runs`; where nobody sees it, once when it comes into sight. An external store is drawn
 * at once, in all roots: what is on the screen twice is never of two moments. */
export function useRuns(runs: KernelRuns | null, visible = true): void {
  const subscribe = React.useCallback(
    (changed: () => void) => {
      if (runs === null || !visible) {
        return NEVER;
      }
      runs.changed.connect(changed);
      return () => void runs.changed.disconnect(changed);
    },
    [runs, visible]
  );
  React.useSyncExternalStore(subscribe, () => (visible ? (runs?.version ?? -1) : -1));
}

/** The kernel that makes the run of an output, while the run goes on; null: none of this page does. */
export function useKernelOf(saved: Page): KernelRuns | null {
  const { id, live } = saved;
  const subscribe = React.useCallback(
    (changed: () => void) => {
      if (!live) {
        return NEVER;
      }
      kernels.changed.connect(changed);
      return () => void kernels.changed.disconnect(changed);
    },
    [live]
  );
  const version = (): string => {
    const runs = live ? kernels.of(id) : null;
    return runs === null ? '' : `${runs.kernelId} ${runs.version}`;
  };
  React.useSyncExternalStore(subscribe, version);
  return live ? kernels.of(id) : null;
}
