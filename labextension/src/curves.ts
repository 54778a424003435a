// The numbers of a chart as the library for charts wants them, and what is said of them.

import { TranslationBundle } from '@jupyterlab/translation';
import { axisText, grouped, toNumber } from './format';
import { Axis, Num } from './types';

/** [x, value, lowest, highest], as in `Chart.points`. */
export type Point = [number, Num, Num, Num];

export interface Curve {
  title: string;
  points: readonly Point[];
}

/** What a chart shows. `x`: what its points are counted in; "": samples over time. `marks`: steps after which something
 * was compiled, `saves`: at which a checkpoint was saved. */
export interface Drawing {
  curves: readonly Curve[];
  axis: Axis;
  x: string;
  marks: readonly number[];
  saves: readonly number[];
}

type Column = (number | null)[];

/** Larger ones would leave no room for a range. */
const LARGEST = 1e300;
/** So many times as much as most values: an outlier. */
const FAR = 4;
const FEWEST = 8;

/** null: it is no finite number, or has no place on the scale. */
function finite(value: Num, log: boolean): number | null {
  const known = toNumber(value);
  return Math.abs(known) < LARGEST && (!log || known > 0) ? known : null;
}

/** x, the values, and of a single curve the highest and the lowest in each part. */
export function columnsOf(curves: readonly Curve[], log: boolean): Column[] {
  const sorted = curves.map(curve => ascending(curve.points));
  if (sorted.length === 1) {
    const [points] = sorted;
    const column = (at: 1 | 2 | 3): Column => points.map(point => finite(point[at], log));
    return [points.map(point => point[0]), column(1), column(3), column(2)];
  }
  const all = [...new Set(sorted.flat().map(point => point[0]))].sort((one, other) => one - other);
  const row = new Map(all.map((x, at) => [x, at]));
  const values = sorted.map(points => {
    const column: Column = all.map(() => null);
    points.forEach(point => (column[row.get(point[0])!] = finite(point[1], log)));
    return column;
  });
  return [all, ...values];
}

/** Each x once, in its order: what is drawn is searched by halves. */
function ascending(points: readonly Point[]): readonly Point[] {
  if (points.every((point, at) => at === 0 || point[0] > points[at - 1][0])) {
    return points;
  }
  return [...new Map(points.map(point => [point[0], point])).values()].sort(
    (one, other) => one[0] - other[0]
  );
}

/** Whether it can be drawn at all. */
export function isCurve(points: readonly Point[]): boolean {
  return points.filter(point => finite(point[1], false) !== null).length > 1;
}

/** Whether all that is drawn is above zero. */
export function isPositive(curves: readonly Curve[]): boolean {
  return curves.every(({ points }) => points.every(point => !(toNumber(point[1]) <= 0)));
}

/** The range of an axis for these values. Of times a few outliers (a step that compiled) are left outside: they would
 * make a flat line of all the others. */
export function rangeOf(axis: Axis, values: Column): [number, number] {
  const known = values.filter((value): value is number => value !== null).sort((a, b) => a - b);
  if (known.length === 0) {
    return [0, 1];
  }
  const low = known[0];
  const high = axis === 'seconds' ? withoutOutliers(known) : known[known.length - 1];
  if (axis !== 'number') {
    return [Math.min(0, low), high > 0 ? high * 1.1 : 1];
  }
  const room = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
  return [low - room, high + room];
}

function withoutOutliers(sorted: readonly number[]): number {
  const most = sorted[Math.floor(0.9 * (sorted.length - 1))];
  const high = sorted[sorted.length - 1];
  return sorted.length >= FEWEST && high > FAR * most ? 1.6 * most : high;
}

// -- in words --------------------------------------------------------------------------------------------------------

/** A point: "step 1,200: 0.412 (0.39 – 0.44), compiled after it". */
export function pointText(
  drawing: Drawing,
  columns: Column[],
  at: number,
  trans: TranslationBundle
): string {
  const { axis, curves, marks, saves } = drawing;
  const x = columns[0][at] ?? 0;
  const words = (value: number | null): string => (value === null ? '–' : axisText(axis, value));
  const named = curves.flatMap(({ title }, curve) => {
    const value = columns[curve + 1][at];
    return curves.length === 1
      ? [words(value)]
      : value === null
        ? []
        : [`${title} ${words(value)}`];
  });
  const [high, low] = curves.length === 1 ? [columns[2][at], columns[3][at]] : [null, null];
  const range =
    low !== null && high !== null && low < high ? ` (${words(low)} – ${words(high)})` : '';
  const compiled = marks.includes(x) ? `, ${trans.__('compiled after it')}` : '';
  const saved = saves.includes(x) ? `, ${trans.__('checkpoint')}` : '';
  return `${whereText(drawing, x, trans)}: ${named.join(', ')}${range}${compiled}${saved}`;
}

function whereText({ x: unit }: Drawing, x: number, trans: TranslationBundle): string {
  return unit === '' ? trans.__('sample %1', grouped(x)) : `${unit} ${grouped(x)}`;
}

/** The values for those who do not see the curve: at most `most` of them, the last one among them. */
export function valuesText(drawing: Drawing, most: number, trans: TranslationBundle): string {
  return drawing.curves
    .map(({ title, points }) => {
      const each = Math.max(1, Math.ceil(points.length / most));
      const some = points.filter((_, at) => (points.length - 1 - at) % each === 0);
      const told = some.map(
        ([x, value]) =>
          `${whereText(drawing, x, trans)}: ${typeof value === 'number' ? axisText(drawing.axis, value) : value}`
      );
      return `${title}. ${told.join('; ')}.`;
    })
    .join(' ');
}
