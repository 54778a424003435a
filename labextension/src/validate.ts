// The validation of messages and saved records as they arrive; all other files rely on it.

import { TranslationBundle } from '@jupyterlab/translation';
import { Faults, isObject, sound } from './checks';
import * as T from './types';

/** "foreign": not a message of ours; "other-version": `found` is the kernel's; "faulty": ours, but not as agreed, or of a
 * type that is not known here. */
export type Incoming =
  | { kind: 'message'; message: T.KernelMessage }
  | { kind: 'other-version'; found: string }
  | { kind: 'faulty'; text: string }
  | { kind: 'foreign' };

/** A run as it can be shown; `faults`: what of it could not. */
export interface RunRecord {
  page: T.Page;
  faults: readonly string[];
}

/** Any message of any comm. */
export function read(data: unknown): Incoming {
  if (!isObject(data) || data.protocol !== T.PROTOCOL) {
    return { kind: 'foreign' };
  }
  const version = data.type === 'hello' && data.v === T.VERSION ? data.python_v : data.v;
  if (version !== T.VERSION) {
    return { kind: 'other-version', found: versionText(version) };
  }
  if (typeof data.type !== 'string' || !Object.hasOwn(T.MESSAGES, data.type)) {
    return { kind: 'faulty', text: `its type ${versionText(data.type)} is not known` };
  }
  const faults = new Faults();
  const message = sound<T.KernelMessage>(
    T.MESSAGES[data.type as T.KernelMessage['type']],
    data,
    faults
  );
  // Of a run is shown what can be shown.
  const lost = message.type === 'run' ? !message.record?.id : faults.found.length > 0;
  return lost ? { kind: 'faulty', text: faults.found[0] ?? '' } : { kind: 'message', message };
}

/** A run after a change; null where it is no run any more. */
export function checkedPage(data: unknown): T.Page | null {
  const faults = new Faults();
  const page = sound<T.Page>('Page', data, faults);
  return faults.found.length > 0 ? null : page;
}

/** What a notebook holds under our mime type: a run, or one line that says why there is none. */
export function readRecord(data: unknown, trans: TranslationBundle): RunRecord | string {
  if (!isObject(data)) {
    return trans.__('This output contains no run.');
  }
  if (data.v !== T.RECORD_VERSION) {
    return trans.__(
      'This run was saved by another version of tpu_magics (run %1, extension %2).',
      versionText(data.v),
      T.RECORD_VERSION
    );
  }
  const faults = new Faults();
  const page = sound<T.Page>('Page', data, faults);
  return page.id
    ? { page, faults: faults.found }
    : trans.__('This saved run cannot be read: %1.', faults.found[0] ?? 'id');
}

/** What a person is told where the kernel's version is another. */
export function otherVersion(found: string, trans: TranslationBundle): string {
  return trans.__(
    'The kernel and the extension have different versions of tpu_magics (kernel %1, extension %2): pip install -U tpu-magics, then reload',
    found,
    T.VERSION
  );
}

function versionText(version: unknown): string {
  return typeof version === 'number' || typeof version === 'string'
    ? String(version).slice(0, 20) || '?'
    : '?';
}
