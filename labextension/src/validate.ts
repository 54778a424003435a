// The validation of messages and saved records as they arrive; all other files rely on it.

import { TranslationBundle } from '@jupyterlab/translation';
import {
  Check,
  flag,
  Invalid,
  isObject,
  list,
  num,
  number,
  object,
  orNull,
  partly,
  text
} from './checks';
import { compileEntry, finding, runRecord, said, view } from './forms';
import * as T from './types';

/** "foreign": not a message of ours; "other-version": `found` is the kernel's; "faulty": ours, but not as agreed, or of a
 * type that is not known here. */
export type Arrived =
  | { kind: 'message'; message: T.KernelMessage }
  | { kind: 'other-version'; found: string }
  | { kind: 'faulty'; text: string }
  | { kind: 'foreign' };

const request = orNull(text);

const host = object<T.KernelHost>({
  title: text,
  rehearsal: flag,
  chips: orNull(number),
  detail: text
});

const runLine = object<T.RunLine>({
  id: text,
  name: text,
  status: text,
  created: orNull(num),
  seconds: orNull(num),
  workers: orNull(number),
  steps: orNull(number),
  compiles: orNull(number),
  recompiles: orNull(number)
});

const comparedTable = object<T.ComparedTable>({
  title: text,
  columns: orNull(list(text)),
  rows: list(object<T.ComparedRow>({ cells: list(text), state: text })),
  notes: list(text)
});

function form<M extends T.KernelMessage>(
  type: M['type'],
  fields: Parameters<typeof object<Omit<M, 'protocol' | 'v' | 'type'>>>[0]
): [M['type'], Check<unknown>] {
  return [type, object(fields) as Check<unknown>];
}

const FORMS = new Map<string, Check<unknown>>([
  form<T.HelloMessage>('hello', {
    version: text,
    python_v: number,
    host: orNull(host),
    run: request,
    live: flag,
    answers: flag
  }),
  form<T.HeartbeatMessage>('here', { run: text, seq: number }),
  form<T.RunMessage>('run', { seq: number, record: runRecord, request }),
  form<T.UpdateMessage>('update', {
    run: text,
    seq: number,
    after: number,
    view: partly<T.RunView>(view),
    said: partly<T.RunTexts>(said),
    log: list(compileEntry)
  }),
  form<T.RunsMessage>('runs', { runs: list(runLine), request }),
  form<T.ComparedMessage>('compared', { runs: list(text), table: comparedTable, request }),
  form<T.FindingsMessage>('findings', { findings: list(finding), checked: text, request }),
  form<T.StoppingMessage>('stopping', { run: text, request }),
  form<T.ProblemMessage>('problem', { what: text, why: text, todo: text, request })
]);

/** Any message of any comm. */
export function read(data: unknown): Arrived {
  if (!isObject(data) || data.protocol !== T.PROTOCOL) {
    return { kind: 'foreign' };
  }
  const version = data.type === 'hello' && data.v === T.VERSION ? data.python_v : data.v;
  if (version !== T.VERSION) {
    return { kind: 'other-version', found: told(version) };
  }
  const check = typeof data.type === 'string' ? FORMS.get(data.type) : undefined;
  if (check === undefined) {
    return { kind: 'faulty', text: `its type ${JSON.stringify(data.type)} is not known` };
  }
  const fault = faultOf(data, check);
  return fault === ''
    ? { kind: 'message', message: data as unknown as T.KernelMessage }
    : { kind: 'faulty', text: fault };
}

/** What a saved notebook holds under our mime type: the record, or one line that says why there is none. */
export function readRecord(data: unknown, trans: TranslationBundle): T.RunRecord | string {
  if (!isObject(data)) {
    return trans.__('This output contains no run.');
  }
  if (data.v !== T.RECORD_VERSION) {
    return trans.__(
      'This run was saved by another version of tpu_magics (run %1, extension %2).',
      told(data.v),
      T.RECORD_VERSION
    );
  }
  const fault = faultOf(data, runRecord);
  return fault === ''
    ? (data as unknown as T.RunRecord)
    : trans.__('This saved run cannot be read: %1.', fault);
}

/** What a person is told where the kernel's version is another. */
export function otherVersion(found: string, trans: TranslationBundle): string {
  return trans.__(
    'The kernel and the extension have different versions of tpu_magics (kernel %1, extension %2): pip install -U tpu-magics, then reload',
    found,
    T.VERSION
  );
}

function told(version: unknown): string {
  return typeof version === 'number' || typeof version === 'string'
    ? String(version).slice(0, 20) || '?'
    : '?';
}

function faultOf(data: unknown, check: Check<unknown>): string {
  try {
    check(data, '');
    return '';
  } catch (error) {
    if (error instanceof Invalid) {
      return error.message;
    }
    throw error;
  }
}
