// Small pieces to check unknown data with.
//
// A check returns nothing and throws `Invalid`, which names the place; what it accepts is a `T`.

import { Num } from './types';

export class Invalid extends Error {}

/** `at`: where in the message, e.g. "view.ranks". The second type parameter only ties a check to what it stands for. */
export type Check<T> = ((value: unknown, at: string) => void) & { accepts?: T };

function wrong(at: string, wanted: string): never {
  throw new Invalid(`${at || 'the message'} is not ${wanted}`);
}

export const text: Check<string> = (value, at) => {
  if (typeof value !== 'string') {
    wrong(at, 'a text');
  }
};

export const flag: Check<boolean> = (value, at) => {
  if (typeof value !== 'boolean') {
    wrong(at, 'true or false');
  }
};

/** A finite number, as JSON has them. */
export const number: Check<number> = (value, at) => {
  if (typeof value !== 'number' || !Number.isFinite(value)) {
    wrong(at, 'a number');
  }
};

export const num: Check<Num> = (value, at) => {
  if (value !== 'nan' && value !== 'inf' && value !== '-inf') {
    number(value, at);
  }
};

export const numberOrText: Check<number | string> = (value, at) => {
  if (typeof value !== 'string') {
    number(value, at);
  }
};

export const anything: Check<unknown> = () => undefined;

export function orNull<T>(check: Check<T>): Check<T | null> {
  return (value, at) => {
    if (value !== null) {
      check(value, at);
    }
  };
}

export function list<T>(check: Check<T>): Check<T[]> {
  return (value, at) => {
    if (!Array.isArray(value)) {
      return wrong(at, 'a list');
    }
    for (let index = 0; index < value.length; index++) {
      check(value[index], at);
    }
  };
}

export function dict<T>(check: Check<T>): Check<{ [key: string]: T }> {
  return (value, at) => {
    for (const each of Object.values(record(value, at))) {
      check(each, at);
    }
  };
}

type Fields<T> = { [K in keyof Required<T>]: Check<T[K]> };

/** A field that records of earlier versions lack. */
export function orMissing<T>(check: Check<T>): Check<T | undefined> {
  return (value, at) => {
    if (value !== undefined) {
      check(value, at);
    }
  };
}

/** All these fields; others may be there as well, because a later kernel may tell more. */
export function object<T>(fields: Fields<T>): Check<T> {
  const known = Object.entries(fields) as [string, Check<unknown>][];
  return (value, at) => {
    const found = record(value, at);
    for (const [name, check] of known) {
      check(found[name], inside(at, name));
    }
  };
}

/** Any of these fields. */
export function partly<T>(fields: Fields<T>): Check<Partial<T>> {
  const known = Object.entries(fields) as [string, Check<unknown>][];
  return (value, at) => {
    const found = record(value, at);
    for (const [name, check] of known) {
      if (found[name] !== undefined) {
        check(found[name], inside(at, name));
      }
    }
  };
}

function record(value: unknown, at: string): { [key: string]: unknown } {
  return isObject(value) ? value : wrong(at, 'an object');
}

export function isObject(value: unknown): value is { [key: string]: unknown } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function inside(at: string, name: string): string {
  return at ? `${at}.${name}` : name;
}
