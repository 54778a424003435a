import { describe, expect, it } from 'vitest';
import { preflightLine } from '../actions';
import { TpuSettings } from '../settings';

describe('the line of a preflight', () => {
  it.each([
    ['def f(model, batch): pass', '%tpu_preflight f model batch --target v5litepod-8'],
    ['def f(model, *, batch): pass', '%tpu_preflight f model batch=batch --target v5litepod-8'],
    ['def f(): pass', '%tpu_preflight f --target v5litepod-8'],
    [
      '%%tpu_train model 16 -n 8 --precision bf16\ndef f(model, batch): pass',
      '%tpu_preflight f model 16 --target v5litepod-8'
    ],
    [
      '#@title x\n%%tpu_train -n 8\ndef f(model): pass',
      '%tpu_preflight f model --target v5litepod-8'
    ],
    [
      '%%tpu_train "a b" [1, -2] key=-3\ndef f(x, y, key): pass',
      '%tpu_preflight f "a b" [1, -2] key=-3 --target v5litepod-8'
    ],
    ['x = 1', '%tpu_preflight FUNCTION ARGS --target v5litepod-8'],
    ['', '%tpu_preflight FUNCTION ARGS --target v5litepod-8'],
    ["s = 'never", '%tpu_preflight FUNCTION ARGS --target v5litepod-8']
  ])('%j', (source, line) => {
    expect(preflightLine(source, [])).toBe(line);
  });
});

describe('settings', () => {
  it.each([
    [{}, { updateRate: 0.5, badges: true }],
    [
      { updateRate: 2, badges: false },
      { updateRate: 2, badges: false }
    ],
    [{ updateRate: 0 }, { updateRate: 0.1, badges: true }],
    [{ updateRate: 1e9 }, { updateRate: 10, badges: true }],
    [
      { updateRate: 'fast', badges: 1 },
      { updateRate: 0.5, badges: true }
    ]
  ])('%j', (found, values) => {
    const settings = new TpuSettings();
    settings.take(found);
    expect(settings.values).toEqual(values);
  });
});
