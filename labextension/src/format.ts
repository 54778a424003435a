// Numbers and places in words, as the kernel's own panel words them (tpu_magics/panel/sections_words.py).

import { TranslationBundle } from '@jupyterlab/translation';
import { Compile, Input, Num, Site } from './types';

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
function significant(value: number, digits: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e15)) {
    return value.toExponential(digits - 1).replace(/\.?0+e/, 'e');
  }
  if (size >= 10 ** digits) {
    return grouped(value);
  }
  return value.toLocaleString('en-US', { maximumSignificantDigits: digits });
}

/** A logged value, short. */
export function shortNumber(value: number | string | null): string {
  if (value === null) {
    return '';
  }
  if (typeof value === 'string') {
    return short(value, 80);
  }
  return significant(value, Number.isInteger(value) ? 15 : 4);
}

export function rate(value: number): string {
  return value >= 1000 ? grouped(value) : significant(value, 3);
}

/** "850 µs", "41 ms", "1.93 s", "4 min 05 s"; "" where it is not known. */
export function seconds(value: Num | null): string {
  const known = toNumber(value);
  if (!Number.isFinite(known)) {
    return '';
  }
  if (known >= 100) {
    return clock(known);
  }
  if (known === 0) {
    return '0 s';
  }
  const [factor, unit] = known >= 1 ? [1, 's'] : known >= 1e-3 ? [1e3, 'ms'] : [1e6, 'µs'];
  return `${significant(known * factor, 3)} ${unit}`;
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
  const digits = unit >= 3 ? 1 : 0;
  const text = value.toLocaleString('en-US', {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits
  });
  return `${text} ${UNITS[unit]}`;
}

/** A share in percent that reads neither 0 nor 100 where it is not. */
export function percent(share: number): string {
  const text = (100 * share).toFixed(0);
  if (text === '0' && share > 0) {
    return 'less than 1 %';
  }
  return text === '100' && share < 1 ? 'more than 99 %' : `${text} %`;
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

/** The number of a compile at its site: "#1". */
export function label(graph: Compile): string {
  return `#${graph.nth}`;
}

/** "input_ids int64[32,129]" */
export function shape(one: Input): string {
  return `${short(one.name, 60)} ${short(one.dtype, 20)}[${one.shape.slice(0, 16).join(',')}]`;
}

/** Bytes of a compiled program by use; "" where the runtime does not report it. */
export function programMemory(memory: Compile['memory']): string {
  return Object.entries(memory ?? {})
    .slice(0, 10)
    .map(([use, used]) => `${short(use, 30)} ${size(used)}`)
    .join(', ');
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
