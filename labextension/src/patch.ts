// Applies what changes one JSON value into another; tpu_magics/panel/patch.py makes it, and describes it.

import { isObject } from './checks';

/** The patch was made for another value. */
export class Misfit extends Error {}

/** The new value. Parts that did not change stay the same objects, so that they need not be drawn again. */
export function patched(value: unknown, patch: unknown): unknown {
  if (!isObject(patch)) {
    throw new Misfit('a patch is an object');
  }
  if (Object.hasOwn(patch, '=')) {
    return patch['='];
  }
  return Object.hasOwn(patch, 'o') ? withFields(value, patch.o) : spliced(value, patch.l);
}

function withFields(value: unknown, patches: unknown): unknown {
  if (!isObject(value) || !isObject(patches)) {
    throw new Misfit('an object is no object');
  }
  const changed = { ...value };
  for (const [field, patch] of Object.entries(patches)) {
    if (!Object.hasOwn(value, field)) {
      throw new Misfit(`${field} is not there`);
    }
    changed[field] = patched(value[field], patch);
  }
  return changed;
}

function spliced(value: unknown, patch: unknown): unknown {
  if (!Array.isArray(value) || !Array.isArray(patch)) {
    throw new Misfit('a list is no list');
  }
  const [start, removed, items, patches = {}, length] = patch as unknown[];
  const fits =
    isCount(start, value.length) && isCount(removed, value.length - start) && Array.isArray(items);
  if (!fits || !isObject(patches)) {
    throw new Misfit('a list is too short');
  }
  const all = [...value.slice(0, start), ...(items as unknown[]), ...value.slice(start + removed)];
  if (length !== undefined && !isCount(length, all.length)) {
    throw new Misfit('a list is longer than it is');
  }
  const changed = all.slice(0, length);
  for (const [index, inner] of Object.entries(patches)) {
    const at = Number(index);
    if (!isCount(at, changed.length - 1)) {
      throw new Misfit(`item ${index} is not there`);
    }
    changed[at] = patched(changed[at], inner);
  }
  return changed;
}

function isCount(value: unknown, most: number): value is number {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= most;
}
