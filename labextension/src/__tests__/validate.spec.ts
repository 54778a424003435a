// Messages and saved records that fit, and those that do not.

import { nullTranslator } from '@jupyterlab/translation';
import { describe, expect, it } from 'vitest';
import { otherVersion, read, readRecord } from '../validate';
import { entry, messages, record, series } from './sample';

const trans = nullTranslator.load('tpu_magics');

const ALL = [
  messages.hello(),
  messages.hello({ host: null, run: 'run-1', live: true }),
  messages.here('run-1', 3),
  messages.run(1, record()),
  messages.update(1, {
    view: { steps: 441, elapsed: 'nan' },
    said: { state: 'x' },
    log: [entry(2)]
  }),
  messages.runs(),
  messages.compared('r'),
  messages.findings(),
  messages.stopping('run-1'),
  messages.problem(null)
];

/** As it comes over the wire. */
function sent(value: unknown): { [key: string]: unknown } {
  return JSON.parse(JSON.stringify(value));
}

describe('read', () => {
  it.each(ALL.map(each => [each.type, each] as const))('takes %s', (_type, message) => {
    expect(read(sent(message))).toEqual({ kind: 'message', message });
  });

  it.each([
    null,
    3,
    'x',
    [],
    {},
    { type: 'hello', v: 1 },
    { protocol: 'other', v: 1, type: 'hello' }
  ])('leaves %j to others', data => {
    expect(read(data)).toEqual({ kind: 'foreign' });
  });

  it.each(ALL.map(each => [each.type, each] as const))(
    'misses each field of %s',
    (_type, message) => {
      const fields = Object.keys(message).filter(name => !['protocol', 'v', 'type'].includes(name));
      for (const name of fields) {
        const without = sent(message);
        delete without[name];
        expect(read(without).kind, name).toBe(name === 'python_v' ? 'other-version' : 'faulty');
        expect(read({ ...sent(message), [name]: () => 0 }).kind, name).not.toBe('message');
      }
    }
  );

  it('names the place of a fault', () => {
    const message = sent(messages.run(1, record()));
    (message.record as { view: { steps: unknown } }).view.steps = 'many';
    expect(read(message)).toEqual({ kind: 'faulty', text: 'record.view.steps is not a number' });
  });

  it('refuses numbers that JSON does not have', () => {
    expect(read({ ...messages.here('run-1', NaN) }).kind).toBe('faulty');
  });

  it('takes fields that it does not know', () => {
    expect(read({ ...sent(messages.hello()), later: 1 }).kind).toBe('message');
  });

  it('does not know a type', () => {
    expect(read({ protocol: 'tpu_magics', v: 1, type: 'goodbye' }).kind).toBe('faulty');
    expect(read({ protocol: 'tpu_magics', v: 1, type: 'toString' }).kind).toBe('faulty');
    expect(read({ protocol: 'tpu_magics', v: 1 }).kind).toBe('faulty');
  });

  it.each([2, 0, undefined, 'one', {}])('tells of version %j', v => {
    const found = read({ ...messages.here('run-1', 1), v });
    const shown = typeof v === 'number' || typeof v === 'string' ? String(v) : '?';
    expect(found).toEqual({ kind: 'other-version', found: shown });
    expect(otherVersion(shown, trans)).toBe(
      'The kernel and the extension have different versions of tpu_magics ' +
        `(kernel ${shown}, extension 1): pip install -U tpu-magics, then reload`
    );
  });

  it("tells of the kernel's version in its hello", () => {
    expect(read(messages.hello({ python_v: 2 })).kind).toBe('other-version');
  });

  it('checks 10,000 compiles', () => {
    const log = Array.from({ length: 10_000 }, (_, at) => entry(10_000 - at));
    expect(read(messages.run(1, record({ compile_log: log }))).kind).toBe('message');
    const spoilt = [...log.slice(0, -1), { ...entry(0), key: 5 as unknown as string }];
    expect(read(messages.run(1, record({ compile_log: spoilt }))).kind).toBe('faulty');
  });
});

/** A translator that shows which texts went through it. */
const marking = {
  __: (text: string, ...args: unknown[]) => `«${trans.__(text, ...(args as string[]))}»`
} as typeof trans;

it('words everything for a translator', () => {
  const texts = [
    otherVersion('2', marking),
    ...[undefined, { v: 2 }, { v: 1 }].map(data => readRecord(data, marking) as string)
  ];
  expect(texts.filter(text => !/^«.*»$/.test(text))).toEqual([]);
});

describe('readRecord', () => {
  it('takes a record', () => {
    const whole = record({ values: [series({ last: 'nan', high: 'inf' })] });
    expect(readRecord(sent(whole), trans)).toEqual(whole);
  });

  it.each([
    [undefined, 'This output contains no run.'],
    ['text', 'This output contains no run.'],
    [[], 'This output contains no run.'],
    [{}, 'This run was saved by another version of tpu_magics (run ?, extension 1).'],
    [{ v: 2 }, 'This run was saved by another version of tpu_magics (run 2, extension 1).'],
    [{ v: 1 }, 'This saved run cannot be read: view is not an object.'],
    [{ ...record(), said: null }, 'This saved run cannot be read: said is not an object.']
  ])('says of %j why there is none', (data, line) => {
    expect(readRecord(data, trans)).toBe(line);
  });
});
