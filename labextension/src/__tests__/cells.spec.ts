import { describe, expect, it } from 'vitest';
import { CellText, cellFinder, isStill, lineOf, numberOf } from '../cells';
import { Site } from '../types';
import * as sample from './sample';

/** Line 2 of the cell `a`. */
const site = (more: Partial<Site> = {}): Site =>
  sample.site({ path: 'In [3]', line: 2, cell_id: 'a', ...more });

const cells: CellText[] = [
  { id: 'a', number: 3, source: 'x = 1\ntorch_xla.sync()' },
  { id: 'b', number: null, source: '' },
  { id: 'c', number: 4, source: 'x = 1\n    torch_xla.sync()  ' }
];

describe('finding a cell', () => {
  it.each([
    ['by its id, whatever its number is now', { cell_id: 'c', path: 'In [1]' }, 2],
    ['by its id, also where the line was edited', { cell_id: 'a', code: 'gone()' }, 0],
    ['by its number without an id', { cell_id: '', path: 'In [4]' }, 2],
    ['by its number, if its id is not there', { cell_id: 'other', path: 'In [4]' }, 2],
    ['not by the number of another text', { cell_id: '', path: 'In [4]', code: 'other()' }, -1],
    [
      'by the number alone where the record has no code',
      { cell_id: '', path: 'In [4]', code: '' },
      2
    ],
    ['not in a file', { cell_id: '', path: '/home/me/train.py' }, -1],
    ['not where no cell has the number', { cell_id: '', path: 'In [9]' }, -1]
  ])('%s', (_name, over, index) => {
    expect(cellFinder(cells)(site(over))).toBe(index);
  });

  it('reads numbers of cells only', () => {
    expect(['In [12]', 'In [12] ', 'Out[1]', 'In [x]', ''].map(numberOf)).toEqual([
      12,
      null,
      null,
      null,
      null
    ]);
  });
});

describe('a line is still the same', () => {
  it.each([
    ['a\n  f(x)  \n', 2, 'f(x)', true],
    ['a\nf(x, y)', 2, 'f(x)', false],
    ['a\nf(x)  # new', 2, 'f(x)', false],
    ['a', 2, 'f(x)', false],
    ['a\n', 2, '', false],
    [`a\n${'x'.repeat(500)}`, 2, 'x'.repeat(200), true],
    ['a', 0, 'a', false]
  ])('%j, line %d: %j', (source, line, code, same) => {
    expect(isStill(source.split('\n')[line - 1], code)).toBe(same);
  });
});

describe('the line of a cell that was edited', () => {
  it.each([
    ['where it was', 'a\nf(x)', 2, 'f(x)', 2],
    ['where it went to', 'new\nnew\na\n  f(x)', 2, 'f(x)', 4],
    ['the nearest of several', 'f(x)\na\na\na\nf(x)', 4, 'f(x)', 5],
    ['none where it is gone', 'a\nf(y)', 2, 'f(x)', 0],
    ['the same number where the record has no code', 'a\nb', 2, '', 2],
    ['none beyond the cell', 'a', 2, '', 0]
  ])('is %s', (_, source, line, code, found) => {
    expect(lineOf(source, { line, code })).toBe(found);
  });
});
