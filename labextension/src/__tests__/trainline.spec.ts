// The cases of trainline.json, which tests/launch/test_train_line.py puts to the kernel's own reader, and what only a
// front end has to decide.

import { describe, expect, it } from 'vitest';
import { magicOf, readCell, trainLine } from '../trainline';
import cases from './trainline.json';

describe('the cases that the kernel decides alike', () => {
  it.each(cases)('$name', ({ source, others, form, line }) => {
    expect(readCell(source, others).form).toBe(form);
    expect(trainLine(source, others)).toBe(line);
  });
});

describe('what only a front end meets', () => {
  it.each([
    ['an empty cell', '', 3],
    ['a string that never ends', "s = 'abc\ndef f(x): pass", 0],
    ['a bracket that never closes', 'f(\ndef g(x): pass', 0],
    ['lines of IPython', '%matplotlib inline\n!ls it\'s (\nfiles = !ls "x\ndef f(x): pass', 1],
    ['a magic behind it', 'def f(x): pass\n%timeit f(1)', 3],
    ['a launcher whose import is out of sight', 'notebook_launcher(f, (1,))\ndef f(x): pass', 2],
    ['type parameters', 'def f[T: (int, str)](x: T): pass', 1],
    ['a cell that is indented', '    def f(x):\n        pass\n', 1],
    ['line ends of Windows', 'def f(\r\n  x):\r\n  pass\r\n', 1]
  ])('%s', (_name, source, form) => {
    const read = readCell(source);
    expect(read.form).toBe(form);
    expect(read.args).toEqual(form === 1 ? ['x'] : []);
  });

  it('names the function', () => {
    expect(readCell('async  def größe(x): pass').name).toBe('größe');
  });

  it.each([
    ['%%time\nx = 1', '%%time'],
    ['\n\n%%tpu_train model -n 2\ndef f(x): pass', '%%tpu_train'],
    ['#@title Train\n%%tpu_train\nx', '%%tpu_train'],
    ['# a comment\n%%time\nx', ''],
    ['x = 1\n%%tpu_train', ''],
    ['%time x', ''],
    ['', '']
  ])('the magic on top of %j is %j', (source, magic) => {
    expect(magicOf(source)).toBe(magic);
  });

  it('reads a long cell at once', () => {
    const source = `${'x = {"a": [1, 2, (3, 4)]}  # comment\n'.repeat(20_000)}def f(x): pass`;
    const began = performance.now();
    expect(trainLine(source)).toBe('%%tpu_train x');
    expect(performance.now() - began).toBeLessThan(2000);
  });
});
