// Points as paths.

import { expect, it } from 'vitest';
import { across, dotsOf, dotsOfNumbers, draw, nearest } from '../curve';
import { Point } from '../types';

const point = (step: number, value: Point['value'], range = 0): Point => ({
  step,
  value,
  low: typeof value === 'number' ? value - range : 'nan',
  high: typeof value === 'number' ? value + range : 'nan'
});

it('goes from edge to edge', () => {
  const drawn = draw(dotsOf([point(10, 1), point(20, 3)]));
  expect(drawn?.line).toBe('M0.0 115.0L600.0 5.0');
  expect(drawn?.band).toBe('');
  expect([drawn?.first, drawn?.last, drawn?.low, drawn?.high]).toEqual([10, 20, 1, 3]);
});

it('has a band where values were merged', () => {
  const drawn = draw(dotsOf([point(0, 1, 0.5), point(1, 2, 0.5)]));
  expect(drawn?.band).toMatch(/^M.*Z$/);
  expect([drawn?.low, drawn?.high]).toEqual([0.5, 2.5]);
});

it('is broken where a value is no finite number', () => {
  const drawn = draw(
    dotsOf([point(0, 1), point(1, 2), point(2, 'nan'), point(3, 1), point(4, 'inf')])
  );
  expect(drawn?.line.match(/M/g)).toHaveLength(2);
  expect(drawn?.alone).toHaveLength(1);
  expect(drawn?.line).not.toContain('NaN');
  expect(drawn?.last).toBe(4);
});

it('needs two numbers', () => {
  expect(draw([])).toBeNull();
  expect(draw(dotsOfNumbers(['nan', 'nan', 'inf']))).toBeNull();
  expect(draw(dotsOfNumbers(['nan', 3]))).toBeNull();
});

it('puts equal values into the middle', () => {
  expect(draw(dotsOfNumbers([2, 2]))?.line).toBe('M0.0 60.0L600.0 60.0');
});

it('takes numbers whose distance no float holds', () => {
  expect(draw(dotsOfNumbers([-1.7e308, 1.7e308]))?.line).toBe('M0.0 115.0L600.0 5.0');
});

it('puts steps that do not grow to the start', () => {
  expect(across(5, 5, 5)).toBe(0);
  expect(across(5, 9, 3)).toBe(0);
});

it('finds what is pointed at', () => {
  const dots = dotsOfNumbers([1, 2, 3, 4]);
  expect(nearest(dots, 0.4).x).toBe(1);
  expect(nearest(dots, 1).x).toBe(3);
});
