// Numbers and places in words: as the kernel's panel words them.

import { nullTranslator } from '@jupyterlab/translation';
import { describe, expect, it } from 'vitest';
import * as format from '../format';
import { compile, SITE } from './sample';

describe('as in tpu_magics/panel/sections_words.py', () => {
  it.each([
    [0, '0 s'],
    [8.5e-7, '0.85 µs'],
    [0.00085, '850 µs'],
    [0.0415, '41.5 ms'],
    [1.9349, '1.93 s'],
    [9.999, '10 s'],
    [99.9, '99.9 s'],
    [100, '1 min 40 s'],
    [245.5, '4 min 05 s'],
    [7451, '2 h 04 min'],
    [1234567, '342 h 56 min'],
    ['nan', ''],
    ['inf', ''],
    [null, '']
  ] as const)('seconds %j', (value, words) => {
    expect(format.seconds(value)).toBe(words);
  });

  it.each([
    [0, '0 bytes'],
    [1023, '1,023 bytes'],
    [1024, '1 KiB'],
    [5e8, '477 MiB'],
    [1.5 * 2 ** 30, '1.5 GiB'],
    [2 ** 45, '32.0 TiB']
  ])('size %j', (value, words) => {
    expect(format.size(value)).toBe(words);
  });

  it.each([
    [0, '0 %'],
    [0.004, 'less than 1 %'],
    [0.5, '50 %'],
    [0.996, 'more than 99 %'],
    [1, '100 %']
  ])('percent %j', (value, words) => {
    expect(format.percent(value)).toBe(words);
  });

  it.each([
    [0.0012, '0.0012'],
    [8.578, '8.58'],
    [999.4, '999'],
    [1234.5, '1,235']
  ])('rate %j', (value, words) => {
    expect(format.rate(value)).toBe(words);
  });
});

describe('shortNumber', () => {
  it.each([
    [1, '1'],
    [0.03647, '0.03647'],
    [2.364123, '2.364'],
    [12345.678, '12,346'],
    [1.417e-5, '1.417e-5'],
    [5e-5, '5e-5'],
    [1e20, '1e+20'],
    [0, '0'],
    [-3.14159, '-3.142'],
    [1234567, '1,234,567'],
    ['nan', 'nan'],
    ['fine-tuning', 'fine-tuning'],
    [null, '']
  ])('%j', (value, words) => {
    expect(format.shortNumber(value)).toBe(words);
  });

  it('cuts long texts', () => {
    expect(format.shortNumber('x'.repeat(500))).toHaveLength(80);
  });
});

it('numbers that JSON does not have', () => {
  expect([format.toNumber('inf'), format.toNumber('-inf')]).toEqual([Infinity, -Infinity]);
  expect(format.toNumber('nan')).toBeNaN();
  expect(format.toNumber(null)).toBeNaN();
});

const trans = nullTranslator.load('tpu_magics');

it('places', () => {
  expect(format.place(SITE, trans)).toBe('In [12], line 14');
  const file = { ...SITE, path: '/home/me/train.py' };
  expect(format.place(file, trans)).toBe('train.py, line 14');
  expect(format.fullPlace(file, trans)).toBe('/home/me/train.py, line 14');
  expect(format.place({ ...SITE, path: '' }, trans)).toBe('n/a');
});

it('compiles', () => {
  const graph = compile(3);
  expect(format.label(graph)).toBe('#3');
  expect(format.shape(graph.inputs[0])).toBe('input_ids int64[32,131]');
  expect(format.programMemory(null)).toBe('');
  expect(format.programMemory({ arguments: 438_000_000 })).toBe('arguments 418 MiB');
});

it('moments', () => {
  expect(format.moment(1795239243)).toMatch(/^2026-11-2\d \d\d:\d\d$/);
  expect(format.moment('nan')).toBe('');
  expect(format.moment(null)).toBe('');
});

it('one line of a text', () => {
  expect(format.short('  two\n lines ', 20)).toBe('two lines');
  expect(format.short('abcdef', 4)).toBe('abc…');
});
