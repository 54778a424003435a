// The numbers of a chart, before they are drawn.

import { nullTranslator } from '@jupyterlab/translation';
import { describe, expect, it } from 'vitest';
import {
  columnsOf,
  Curve,
  isCurve,
  isPositive,
  Point,
  pointText,
  rangeOf,
  valuesText
} from '../curves';

const trans = nullTranslator.load('tpu_magics');
const curve = (...points: Point[]): Curve => ({ title: 'loss', points });
const plain = (...values: (number | 'nan' | 'inf')[]): Curve =>
  curve(...values.map((value, at): Point => [at, value, value, value]));

describe('columns', () => {
  it('of one curve have its range, and nothing where a value is no number', () => {
    const columns = columnsOf(
      [curve([1, 2, 1, 3], [2, 'nan', 'nan', 'nan'], [3, 4, 3, 'inf'])],
      false
    );
    expect(columns).toEqual([
      [1, 2, 3],
      [2, null, 4],
      [3, null, null],
      [1, null, 3]
    ]);
  });

  it('of a logarithmic scale have nothing below zero', () => {
    expect(columnsOf([plain(1, 0, -1)], true)[1]).toEqual([1, null, null]);
    expect(isPositive([plain(1, 0.5, 'nan')])).toBe(true);
    expect(isPositive([plain(1, 0)])).toBe(false);
  });

  it('of several curves have one row for each x', () => {
    const other = curve([1, 9, 9, 9], [5, 8, 8, 8]);
    expect(columnsOf([plain(1, 2), other], false)).toEqual([
      [0, 1, 5],
      [1, 2, null],
      [null, 9, 8]
    ]);
  });

  it('are in order, each x once, whatever comes', () => {
    const odd = curve([3, 1, 1, 1], [1, 2, 2, 2], [3, 4, 4, 4], [2, 5, 5, 5]);
    expect(columnsOf([odd], false).slice(0, 2)).toEqual([
      [1, 2, 3],
      [2, 5, 4]
    ]);
  });

  it('of numbers at the end of the range are left out: they would leave none', () => {
    expect(columnsOf([plain(1.7e308, 1)], false)[1]).toEqual([null, 1]);
    expect(isCurve(plain(1.7e308, -1.7e308).points)).toBe(false);
    expect(isCurve(plain(1, 'nan', 2).points)).toBe(true);
  });
});

describe('a range', () => {
  it('has room for the curve', () => {
    const [low, high] = rangeOf('number', [1, null, 3]);
    expect([low < 1, low > 0.5, high > 3, high < 3.5]).toEqual([true, true, true, true]);
  });

  it('of one value is more than a point', () => {
    for (const value of [0, 8, -2]) {
      const [low, high] = rangeOf('number', [value, value]);
      expect([low < value, high > value]).toEqual([true, true]);
    }
  });

  it('of times begins at zero, and leaves outliers out', () => {
    const times = [4, ...Array.from({ length: 50 }, () => 0.02)];
    const [low, high] = rangeOf('seconds', times);
    expect(low).toBe(0);
    expect([high > 0.02, high < 0.1]).toEqual([true, true]);
    expect(rangeOf('seconds', [4, 0.02, 0.02])[1]).toBeGreaterThan(4);
    expect(rangeOf('bytes', times)[1]).toBeGreaterThan(4);
  });

  it('of nothing is one all the same', () => {
    expect(rangeOf('number', [null])).toEqual([0, 1]);
  });
});

describe('words', () => {
  const drawing = (curves: Curve[], marks: number[] = [], x = 'step') => ({
    curves,
    axis: 'seconds' as const,
    x,
    marks,
    saves: [1201]
  });

  it('of the point that is pointed at', () => {
    const one = drawing([curve([1200, 0.02, 0.01, 0.03], [1201, 'nan', 'nan', 'nan'])], [1200]);
    const columns = columnsOf(one.curves, false);
    expect(pointText(one, columns, 0, trans)).toBe(
      'step 1,200: 20 ms (10 ms – 30 ms), compiled after it'
    );
    expect(pointText(one, columns, 1, trans)).toBe('step 1,201: –, checkpoint');
  });

  it('of several curves name each that has a value there', () => {
    const two = drawing([plain(1, 2), { title: 'other', points: [[0, 3, 3, 3]] }], [], '');
    const columns = columnsOf(two.curves, false);
    expect(pointText(two, columns, 0, trans)).toBe('sample 0: loss 1 s, other 3 s');
    expect(pointText(two, columns, 1, trans)).toBe('sample 1: loss 2 s');
  });

  it('for those who hear them are few, the last among them', () => {
    const text = valuesText(
      drawing([plain(...Array.from({ length: 100 }, (_, at) => at))]),
      4,
      trans
    );
    expect(text.match(/step/g)).toHaveLength(4);
    expect(text).toContain('step 99: 99 s');
    expect(valuesText(drawing([plain('nan', 1)]), 4, trans)).toContain('step 0: nan');
  });
});
