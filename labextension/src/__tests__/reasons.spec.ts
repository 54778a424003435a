import { nullTranslator } from '@jupyterlab/translation';
import { describe, expect, it } from 'vitest';
import { Badge, kindOf, spoken, siteReasons, wordsOf } from '../reasons';
import { RunRecord } from '../types';
import { checked, finding, record, site } from './records';

const trans = nullTranslator.load('tpu_magics');
const badge = (...args: Parameters<typeof siteReasons>): Badge => ({
  line: 2,
  reasons: siteReasons(...args).map(one => one.reason)
});

describe('what is told', () => {
  it('is nothing without a run and a check', () => {
    expect(siteReasons(null, null, trans)).toEqual([]);
  });

  it('has one reason for each cause at a line, however many compiles there were', () => {
    const many = record([[9_999, {}]]);
    many.view.compile_log = new Proxy([], {
      get: () => {
        throw new Error('the compiles are looked through one by one');
      }
    }) as RunRecord['view']['compile_log'];
    const [one] = siteReasons(many, null, trans);
    expect(one.reason.count).toBe(9_999);
    expect(one.reason.title).toBe('Recompiled 9999 times');
  });

  it('shows a difference once, in its sentence or by itself', () => {
    const difference = ['x now f32[9], before f32[8]'];
    const said = record([[1, { difference, text: `Another shape: ${difference[0]}.` }]]);
    expect(siteReasons(said, null, trans)[0].reason.code).toEqual([]);
    expect(siteReasons(record([[1, { difference }]]), null, trans)[0].reason.code).toEqual(
      difference
    );
  });

  it('cuts long differences short, and says so', () => {
    const difference = Array.from({ length: 10 }, (_, at) => `x${at}`);
    const { code } = siteReasons(record([[1, { difference }]]), null, trans)[0].reason;
    expect(code).toHaveLength(5);
    expect(code[4]).toBe('and 6 more differences');
  });

  it('names a cause by its code where nothing else names it', () => {
    const [one] = siteReasons(record([[1, { cause: 'constructor' }]]), null, trans);
    expect(one.reason.name).toBe('constructor');
  });

  it('says what the run and the check found alike once', () => {
    const told = siteReasons(record([], [finding()]), checked([finding()]), trans);
    expect(told).toHaveLength(1);
  });

  it('is new with each answer of a check, and the same while it is the same answer', () => {
    const answer = checked([finding()]);
    const key = (one: typeof answer): string => siteReasons(null, one, trans)[0].reason.key;
    expect(key(answer)).toBe(key(answer));
    expect(key(answer)).not.toBe(key(checked([finding()])));
  });

  it('is new with another run, and the same however often the line recompiles in one', () => {
    const key = (count: number, id: string): string =>
      siteReasons(record([[count, {}]], [], id), null, trans)[0].reason.key;
    expect(key(2, 'a')).toBe(key(1, 'a'));
    expect(key(1, 'b')).not.toBe(key(1, 'a'));
  });
});

describe('the words of a badge', () => {
  it.each([
    [record([[1, {}]]), null, 'recompiled', 'recompile'],
    [record([[3, {}]]), null, 'recompiled 3×', 'recompile'],
    [
      record([
        [2, {}],
        [1, { cause: 'new-code' }]
      ]),
      null,
      'recompiled 3×, 2 reasons',
      'recompile'
    ],
    [record([[2, {}]]), checked([finding()]), 'recompiled 2×, 2 reasons', 'recompile'],
    [null, checked([finding()]), 'rule TPU101', 'rule'],
    [null, checked([finding(), finding({ code: 'TPU102' })]), 'rule, 2 reasons', 'rule'],
    [null, checked([finding({ advice: true, code: 'TPU402' })]), 'advice TPU402', 'advice']
  ])('%#', (run, check, words, kind) => {
    const one = badge(run, check, trans);
    expect(wordsOf(one, trans)).toBe(words);
    expect(kindOf(one)).toBe(kind);
  });

  it('are spoken with the line and every reason', () => {
    const one = badge(record([[3, {}]]), checked([finding()]), trans);
    expect(spoken(one, trans)).toBe(
      'recompiled 3×, 2 reasons. Line 2. Recompiled 3 times: input-shape. Breaks a rule of XLA: TPU101'
    );
  });
});

it('two lines are two places', () => {
  const told = siteReasons(null, checked([finding(), finding({ site: site({ line: 3 }) })]), trans);
  expect(new Set(told.map(one => one.reason.key)).size).toBe(2);
});
