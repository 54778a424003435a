// A patch makes of one JSON value another; the Python side makes these same patches (tests/panel/test_patch.py).

import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { Misfit, patched } from '../patch';

interface Vector {
  name: string;
  old: unknown;
  new: unknown;
  patch: unknown;
}

const VECTORS: Vector[] = JSON.parse(readFileSync('../tests/panel/patch_vectors.json', 'utf8'));

describe('a patch', () => {
  it.each(VECTORS.filter(one => one.patch !== null).map(one => [one.name, one] as const))(
    '%s',
    (_name, vector) => {
      const before = JSON.stringify(vector.old);
      expect(patched(vector.old, vector.patch)).toEqual(vector.new);
      expect(JSON.stringify(vector.old)).toBe(before);
    }
  );

  it('leaves what it does not change the same object', () => {
    const old = { kept: [{ a: 1 }], list: [{ key: 'x' }, { key: 'y' }], b: 1 };
    const changed = patched(old, {
      o: { b: { '=': 2 }, list: { l: [0, 0, [{ key: 'w' }], { 2: { o: { key: { '=': 'z' } } } }] } }
    }) as typeof old;
    expect(changed.kept).toBe(old.kept);
    expect(changed.list[1]).toBe(old.list[0]);
    expect(changed.list.map(one => one.key)).toEqual(['w', 'x', 'z']);
  });

  it.each([
    [{}, null],
    [{}, {}],
    [{}, { o: { missing: { '=': 1 } } }],
    [{}, JSON.parse('{"o": {"__proto__": {"=": {"polluted": 1}}}}')],
    [[], { o: {} }],
    ['x', { o: {} }],
    [{}, { l: [0, 0, []] }],
    [[], { l: [1, 0, []] }],
    [[1], { l: [0, 2, []] }],
    [[1], { l: [-1, 0, []] }],
    [[1], { l: [0.5, 0, []] }],
    [[1], { l: [0, 0] }],
    [[1], { l: [0, 0, [], { 3: { '=': 1 } }] }],
    [[1], { l: [0, 0, [], { length: { '=': 1e9 } }] }],
    [[1], { l: [0, 0, [], []] }],
    [[1], { l: [0, 0, [], {}, 2] }],
    [[1], { l: [0, 0, [], {}, -1] }]
  ])('made for another value: %j %j', (old, patch) => {
    expect(() => patched(old, patch)).toThrow(Misfit);
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });
});
