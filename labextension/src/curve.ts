// A curve as the paths of a drawing.

import { toNumber } from './format';
import { Num, Point } from './types';

export const WIDE = 600;
export const HIGH = 120;
const EDGE = 5;

/** `x`: a step, or the number of a sample. Not finite: NaN. */
export interface Dot {
  x: number;
  y: number;
  low: number;
  high: number;
}

export interface Drawn {
  line: string;
  /** The range in each part of the curve; "" where no part has one. */
  band: string;
  /** Single values between two that are not finite, which a line would not show. */
  alone: [number, number][];
  low: number;
  high: number;
  first: number;
  last: number;
}

export function dotsOf(points: Point[]): Dot[] {
  return points.map(each => ({
    x: each.step,
    y: finite(each.value),
    low: finite(each.low),
    high: finite(each.high)
  }));
}

export function dotsOfNumbers(numbers: Num[]): Dot[] {
  return numbers.map((each, x) => {
    const y = finite(each);
    return { x, y, low: y, high: y };
  });
}

function finite(value: Num): number {
  const known = toNumber(value);
  return Number.isFinite(known) ? known : NaN;
}

/** null: less than two dots have a finite value. */
export function draw(dots: Dot[]): Drawn | null {
  const known = dots.filter(dot => !Number.isNaN(dot.y));
  if (known.length < 2) {
    return null;
  }
  const low = least(known.map(lowest));
  const high = -least(known.map(dot => -highest(dot)));
  const first = dots[0].x;
  const last = dots[dots.length - 1].x;
  const at = (dot: Dot, value: number): [number, number] => [
    across(dot.x, first, last) * WIDE,
    HIGH - EDGE - share(value, low, high) * (HIGH - 2 * EDGE)
  ];
  const parts = stretches(dots);
  return {
    line: parts.map(part => path(part.map(dot => at(dot, dot.y)))).join(''),
    band: parts.map(part => bandOf(part, at)).join(''),
    alone: parts.filter(part => part.length === 1).map(([dot]) => at(dot, dot.y)),
    low,
    high,
    first,
    last
  };
}

/** Where `x` lies between the ends, 0 to 1. */
export function across(x: number, first: number, last: number): number {
  return last > first ? Math.min(1, Math.max(0, (x - first) / (last - first))) : 0;
}

/** The dot that is nearest to a part of the width. */
export function nearest(dots: Dot[], part: number): Dot {
  const x = dots[0].x + part * (dots[dots.length - 1].x - dots[0].x);
  return dots.reduce((best, dot) => (Math.abs(dot.x - x) < Math.abs(best.x - x) ? dot : best));
}

function stretches(dots: Dot[]): Dot[][] {
  const found: Dot[][] = [[]];
  for (const dot of dots) {
    if (!Number.isNaN(dot.y)) {
      found[found.length - 1].push(dot);
    } else if (found[found.length - 1].length > 0) {
      found.push([]);
    }
  }
  return found.filter(part => part.length > 0);
}

function bandOf(part: Dot[], at: (dot: Dot, value: number) => [number, number]): string {
  if (part.length < 2 || part.every(dot => lowest(dot) === highest(dot))) {
    return '';
  }
  const tops = part.map(dot => at(dot, highest(dot)));
  const bottoms = part.map(dot => at(dot, lowest(dot))).reverse();
  return `${path([...tops, ...bottoms])}Z`;
}

function lowest(dot: Dot): number {
  return Number.isNaN(dot.low) ? dot.y : Math.min(dot.low, dot.y);
}

function highest(dot: Dot): number {
  return Number.isNaN(dot.high) ? dot.y : Math.max(dot.high, dot.y);
}

function least(numbers: number[]): number {
  return numbers.reduce((left, right) => Math.min(left, right));
}

/** Halved first: the distance between two numbers may be more than a float can hold. */
function share(value: number, low: number, high: number): number {
  const span = high / 2 - low / 2;
  return span > 0 ? (value / 2 - low / 2) / span : 0.5;
}

function path(places: [number, number][]): string {
  return places
    .map(([x, y], index) => `${index === 0 ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`)
    .join('');
}
