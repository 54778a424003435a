// Numbers, places and moments in words, as the kernel words them (tpu_magics/panel/formats.py).

import { TranslationBundle } from '@jupyterlab/translation';
import { Axis, Num, Site } from './types';

const UNITS = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];

export function toNumber(value: Num | null): number {
  if (typeof value === 'number') {
    return value;
  }
  return value === 'inf' ? Infinity : value === '-inf' ? -Infinity : NaN;
}

/** E.g. "1,200". */
export function grouped(value: number): string {
  return value.toLocaleString('en-US', { maximumFractionDigits: 0 });
}

/** At most `digits` significant ones, without an exponent where it can be avoided. */
export function significant(value: number, digits: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e15)) {
    return value.toExponential(digits - 1).replace(/\.?0+e/, 'e');
  }
  if (size >= 10 ** digits) {
    return grouped(value);
  }
  return value.toLocaleString('en-US', { maximumSignificantDigits: digits });
}

/** "850 µs", "41 ms", "1.93 s", "4 min 05 s". */
export function seconds(value: number): string {
  if (value >= 100) {
    return clock(value);
  }
  if (value === 0) {
    return '0 s';
  }
  const size = Math.abs(value);
  const [factor, unit] = size >= 1 ? [1, 's'] : size >= 1e-3 ? [1e3, 'ms'] : [1e6, 'µs'];
  return `${significant(value * factor, 3)} ${unit}`;
}

/** "8 s", "4 min 05 s", "2 h 04 min". */
export function clock(value: number): string {
  const whole = Math.floor(value);
  if (whole < 60) {
    return `${whole} s`;
  }
  if (whole < 3600) {
    return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  }
  return `${grouped(Math.floor(whole / 3600))} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

function two(value: number): string {
  return String(value).padStart(2, '0');
}

/** Bytes: "512 MiB", "1.4 GiB". */
export function size(value: number): string {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${significant(value, value >= 1000 ? 4 : 3)} ${UNITS[unit]}`;
}

/** A value of a chart with its unit. */
export function axisText(axis: Axis, value: number): string {
  switch (axis) {
    case 'seconds':
      return seconds(value);
    case 'bytes':
      return size(value);
    case 'rate':
      return `${significant(value, 3)}/s`;
    default:
      return significant(value, 4);
  }
}

/** One line of at most `most` characters. */
export function short(text: string, most: number): string {
  const line = text
    .slice(0, 4 * most + 100)
    .trim()
    .split(/\s+/)
    .join(' ');
  return line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}

/** "In [12], line 14"; of a file only its name. */
export function place(site: Site, trans: TranslationBundle): string {
  const name = site.path.slice(site.path.lastIndexOf('/') + 1) || site.path;
  return placed(short(name, 60), site, trans);
}

/** The same with the whole path of a file. */
export function fullPlace(site: Site, trans: TranslationBundle): string {
  return placed(short(site.path, 200), site, trans);
}

function placed(name: string, site: Site, trans: TranslationBundle): string {
  return name ? trans.__('%1, line %2', name, site.line) : trans.__('n/a');
}

/** "2026-11-21 05:34" in the reader's own time zone; "" where it is not known. */
export function moment(unix: Num | null): string {
  const at = new Date(1000 * toNumber(unix));
  if (Number.isNaN(at.getTime())) {
    return '';
  }
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}`;
}
