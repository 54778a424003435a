// Messages and saved records that fit, and those that do not.

import { nullTranslator } from '@jupyterlab/translation';
import { describe, expect, it } from 'vitest';
import { Faults, MOST_CHARACTERS, MOST_ITEMS, Name, sound } from '../checks';
import { FORMS, Page } from '../types';
import { otherVersion, read, readRecord, RunRecord } from '../validate';
import { chart, done, item, messages, page, problem, section } from './sample';

const trans = nullTranslator.load('tpu_magics');

const ALL = [
  messages.hello(),
  messages.hello({ host: null, run: 'run-1', live: true }),
  messages.here('run-1', 3),
  messages.run(1, page()),
  messages.update(1, { elapsed: '2 s' }),
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

  it.each(ALL.filter(each => each.type !== 'run').map(each => [each.type, each] as const))(
    'misses each field of %s',
    (_type, message) => {
      const fields = Object.keys(message).filter(
        name => !['protocol', 'v', 'type', 'patch'].includes(name)
      );
      for (const name of fields) {
        const without = sent(message);
        delete without[name];
        expect(read(without).kind, name).toBe(name === 'python_v' ? 'other-version' : 'faulty');
        expect(read({ ...sent(message), [name]: () => 0 }).kind, name).not.toBe('message');
      }
    }
  );

  it('names the place of a fault', () => {
    const message = sent(messages.hello());
    (message.host as { title: unknown }).title = 7;
    expect(read(message)).toEqual({ kind: 'faulty', text: 'host.title is not a text' });
  });

  it('refuses a run that has no id, and takes of another what can be shown', () => {
    expect(read({ ...sent(messages.run(1, page())), record: 'all' }).kind).toBe('faulty');
    const message = sent(messages.run(1, page()));
    (message.record as { figures: unknown }).figures = 'four';
    expect(read(message)).toMatchObject({ kind: 'message', message: { record: { figures: [] } } });
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

describe('a saved record', () => {
  const mended = (spoilt: unknown): RunRecord => readRecord(spoilt, trans) as RunRecord;

  it('that fits is taken as it is', () => {
    const whole = sent(done());
    const { page: taken, faults } = mended(whole);
    expect(taken).toBe(whole);
    expect(faults).toEqual([]);
  });

  it.each([
    [undefined, 'This output contains no run.'],
    ['text', 'This output contains no run.'],
    [[], 'This output contains no run.'],
    [{}, 'This run was saved by another version of tpu_magics (run ?, extension 1).'],
    [{ v: 2 }, 'This run was saved by another version of tpu_magics (run 2, extension 1).'],
    [{ v: 1 }, 'This saved run cannot be read: id is not a text.']
  ])('says of %j why there is none', (data, line) => {
    expect(readRecord(data, trans)).toBe(line);
  });

  it('that is torn shows what can be shown, and says what could not', () => {
    const { page: taken, faults } = mended({
      ...page(),
      charts: [chart(), 'a chart', { ...chart(), points: [[1, 2], [3, 4, 5, 6], null] }],
      problems: [{ ...problem(), tone: 'purple', site: { line: 'two' } }],
      figures: undefined
    });
    expect(taken.charts).toHaveLength(2);
    expect(taken.charts[1].points).toEqual([[3, 4, 5, 6]]);
    expect(taken.problems[0]).toMatchObject({ tone: '', title: problem().title });
    expect(taken.problems[0].site).toMatchObject({ line: 0, path: '' });
    expect(taken.figures).toEqual([]);
    expect(faults).toContain('figures is not a list');
    expect(faults).toContain('charts is not an object');
  });

  it('takes nothing from a prototype', () => {
    const { page: taken } = mended({ ...page(), sections: [Object.create(section())] });
    expect(taken.sections[0].title).toBe('');
  });

  it.each([
    [
      'rows',
      { sections: [section({ rows: many(20_000, { cells: ['0'], tone: '', site: null }) })] }
    ],
    ['items', { sections: [section({ items: many(20_000, item(1)) })] }],
    ['points', { charts: [chart({ points: many(1_000_000, [1, 2, 3, 4]) as never })] }],
    ['sections', { sections: many(5_000, section()) }],
    ['rows in sections', { sections: many(500, section({ items: many(1_000, item(1)) })) }],
    ['a text', { name: 'x'.repeat(10_000_000) }]
  ])('with too many %s is cut, says so, and is read in a moment', (_, more) => {
    const began = performance.now();
    const { page: taken, faults } = mended(page(more as Partial<Page>));
    expect(performance.now() - began).toBeLessThan(500);
    expect(faults.join()).toContain('is cut');
    expect(taken.name.length).toBeLessThanOrEqual(MOST_CHARACTERS + 1);
    expect(taken.charts[0].points.length).toBeLessThanOrEqual(MOST_ITEMS);
    expect(taken.sections.length).toBeLessThanOrEqual(MOST_ITEMS);
  });
});

function many<T>(count: number, one: T): T[] {
  return Array.from({ length: count }, () => structuredClone(one));
}

it('every form can be read, and mends nothing into what does not fit', () => {
  for (const name of Object.keys(FORMS) as Name[]) {
    const faults = new Faults();
    const made = sound<object>(name, {}, faults);
    expect(sound(name, made, new Faults())).toBe(made);
    expect(faults.found.length).toBe(Object.keys(FORMS[name]).filter(isRequired(name)).length);
  }
});

/** Whatever it is, there is something to be said of its being absent. */
function isRequired(name: Name): (field: string) => boolean {
  return field => (FORMS[name] as { [field: string]: string })[field] !== 'unknown';
}
