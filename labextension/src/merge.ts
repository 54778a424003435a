// An update put into a record.

import { RunRecord, UpdateMessage } from './types';

/** As many compiles as the kernel's own view keeps. */
export const MOST_COMPILES = 1_000;

/** A new record; parts that did not change stay the same objects, so that they need not be drawn again. */
export function merged(record: RunRecord, update: UpdateMessage): RunRecord {
  const view = { ...record.view, ...update.view };
  if (update.log.length > 0) {
    view.compile_log = [...update.log, ...view.compile_log].slice(0, MOST_COMPILES);
  }
  return { ...record, view, said: { ...record.said, ...update.said } };
}
