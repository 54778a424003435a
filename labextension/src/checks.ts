// Checks unknown data by the forms in types.ts, and makes of it what can be shown: what does not fit is left out, and
// named; what is too long is cut.

import { FORMS, WORDS } from './types';

export type Name = keyof typeof FORMS;

/** Of a list, and of a text. The kernel sends less; another's file may hold anything. */
export const MOST_ITEMS = 2_000;
export const MOST_CHARACTERS = 20_000;
/** All values together: what takes a fraction of a second. */
const MOST_VALUES = 100_000;

/** What was wrong, and where: at most so many are told. */
export class Faults {
  readonly found: string[] = [];
  /** How many values may still be read. */
  left = MOST_VALUES;

  add(at: string, what: string): void {
    if (this.found.length < 20) {
      this.found.push(`${at || 'the message'} ${what}`);
    }
  }
}

/** Returns the value itself where it fits. */
type Reader = (value: unknown, at: string, faults: Faults) => unknown;

/** An item that is dropped from its list. */
const NOTHING = Symbol('nothing');

/** A value of this form; the same object where nothing had to be mended. */
export function sound<T>(name: Name, value: unknown, faults: Faults): T {
  return reader(name)(value, '', faults) as T;
}

function leaf(fits: (value: unknown) => boolean, wanted: string, instead: unknown): Reader {
  return (value, at, faults) => {
    faults.left -= 1;
    if (fits(value)) {
      return value;
    }
    faults.add(at, `is not ${wanted}`);
    return instead;
  };
}

const isNumber = (value: unknown): boolean => typeof value === 'number' && Number.isFinite(value);
const isNum = (value: unknown): boolean =>
  isNumber(value) || value === 'nan' || value === 'inf' || value === '-inf';

const text: Reader = (value, at, faults) => {
  faults.left -= 1;
  if (typeof value !== 'string') {
    faults.add(at, 'is not a text');
    return '';
  }
  if (value.length <= MOST_CHARACTERS) {
    return value;
  }
  faults.add(at, `is cut: it has ${value.length} characters`);
  return `${value.slice(0, MOST_CHARACTERS)}…`;
};

const LEAVES: { [form: string]: Reader } = {
  string: text,
  boolean: leaf(value => typeof value === 'boolean', 'true or false', false),
  number: leaf(isNumber, 'a number', 0),
  Num: leaf(isNum, 'a number', 'nan'),
  unknown: value => value
};

function orNull(inner: Reader): Reader {
  return (value, at, faults) => (value === null ? null : dropped(inner(value, at, faults), null));
}

function listOf(inner: Reader): Reader {
  return (value, at, faults) => {
    if (!Array.isArray(value)) {
      faults.add(at, 'is not a list');
      return [];
    }
    const items: unknown[] = value.length > MOST_ITEMS ? value.slice(0, MOST_ITEMS) : value;
    if (items !== value) {
      faults.add(at, `is cut: it has ${value.length} items`);
    }
    const read: unknown[] = [];
    for (let index = 0; index < items.length; index++) {
      if (faults.left <= 0) {
        faults.add(at, `is cut: ${items.length - index} items are too much`);
        break;
      }
      read.push(inner(items[index], at, faults));
    }
    const kept = read.filter(each => each !== NOTHING);
    const same = kept.length === value.length && kept.every((each, index) => each === value[index]);
    return same ? value : kept;
  };
}

/** All of them, each with its own form. */
function tupleOf(inner: readonly Reader[]): Reader {
  return (value, at, faults) => {
    const fits =
      Array.isArray(value) && value.length === inner.length ? (value as unknown[]) : null;
    if (fits === null) {
      faults.add(at, `is not a list of ${inner.length}`);
      return NOTHING;
    }
    const read = inner.map((each, index) => each(fits[index], at, faults));
    return read.every((each, index) => each === fits[index]) ? fits : read;
  };
}

/** All of its fields; others may be there as well, because a later kernel may tell more. */
function recordOf(fields: { readonly [field: string]: string }): Reader {
  const known = new WeakSet<object>();
  let readers: [string, Reader][] | null = null;
  return (value, at, faults) => {
    if (!isObject(value)) {
      faults.add(at, 'is not an object');
      return NOTHING;
    }
    if (known.has(value)) {
      return value;
    }
    readers ??= Object.entries(fields).map(([field, form]) => [field, reader(form)]);
    const before = faults.found.length;
    let mended: { [field: string]: unknown } | null = null;
    for (const [field, read] of readers) {
      const own = Object.hasOwn(value, field) ? value[field] : undefined;
      const found = dropped(read(own, at ? `${at}.${field}` : field, faults), null);
      if (found !== own) {
        mended ??= { ...value };
        mended[field] = found;
      }
    }
    if (faults.found.length === before) {
      known.add(value);
    }
    return mended ?? value;
  };
}

const dropped = (value: unknown, instead: unknown): unknown =>
  value === NOTHING ? instead : value;

const readers = new Map<string, Reader>();

/** The reader of a type as TypeScript writes it: "Row[]", "Site | null", "[number, Num]". */
function reader(form: string): Reader {
  const known = readers.get(form);
  if (known !== undefined) {
    return known;
  }
  const made = parsed(form);
  readers.set(form, made);
  return made;
}

function parsed(form: string): Reader {
  if (form.endsWith(' | null')) {
    return orNull(reader(form.slice(0, -' | null'.length)));
  }
  if (form.endsWith('[]')) {
    return listOf(reader(form.slice(0, -2)));
  }
  if (form.startsWith('[')) {
    return tupleOf(form.slice(1, -1).split(', ').map(reader));
  }
  if (Object.hasOwn(WORDS, form)) {
    const words: readonly unknown[] = WORDS[form as keyof typeof WORDS];
    return leaf(value => words.includes(value), `one of ${words.join(', ')}`, words[0]);
  }
  return Object.hasOwn(LEAVES, form) ? LEAVES[form] : recordOf(FORMS[form as Name]);
}

export function isObject(value: unknown): value is { [key: string]: unknown } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
