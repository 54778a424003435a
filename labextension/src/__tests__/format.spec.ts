// Numbers and places in words: as the kernel words them (tpu_magics/panel/formats.py).

import { nullTranslator } from '@jupyterlab/translation';
import { expect, it } from 'vitest';
import * as format from '../format';
import { Axis } from '../types';
import { SITE } from './sample';

it.each([
  [0, '0 s'],
  [8.5e-7, '0.85 µs'],
  [0.00085, '850 µs'],
  [0.0415, '41.5 ms'],
  [1.9349, '1.93 s'],
  [99.9, '99.9 s'],
  [100, '1 min 40 s'],
  [245.5, '4 min 05 s'],
  [7451, '2 h 04 min'],
  [1234567, '342 h 56 min']
])('seconds %j', (value, words) => {
  expect(format.seconds(value)).toBe(words);
});

it.each([
  [0, '0 bytes'],
  [1023, '1,023 bytes'],
  [1024, '1 KiB'],
  [5e8, '477 MiB'],
  [1.5 * 2 ** 30, '1.5 GiB'],
  [2 ** 45, '32 TiB']
])('size %j', (value, words) => {
  expect(format.size(value)).toBe(words);
});

it.each<[Axis, number, string]>([
  ['number', 0.03647, '0.03647'],
  ['number', 2.364123, '2.364'],
  ['number', 12345.678, '12,346'],
  ['number', 1.417e-5, '1.417e-5'],
  ['number', 5e-5, '5e-5'],
  ['number', 1e20, '1e+20'],
  ['number', 0, '0'],
  ['number', -3.14159, '-3.142'],
  ['seconds', 0.02, '20 ms'],
  ['bytes', 2 ** 20, '1 MiB'],
  ['rate', 8.578, '8.58/s']
])('%s %j', (axis, value, words) => {
  expect(format.axisText(axis, value)).toBe(words);
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

it('moments', () => {
  expect(format.moment(1795239243)).toMatch(/^2026-11-2\d \d\d:\d\d$/);
  expect(format.moment('nan')).toBe('');
  expect(format.moment(null)).toBe('');
});

it('one line of a text', () => {
  expect(format.short('  two\n lines ', 20)).toBe('two lines');
  expect(format.short('abcdef', 4)).toBe('abc…');
});
