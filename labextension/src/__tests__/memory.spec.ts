import { nullTranslator } from '@jupyterlab/translation';
import { beforeEach, describe, expect, it } from 'vitest';
import { CellText } from '../cells';
import { Memory } from '../memory';
import { Badge, SiteReason, siteReasons } from '../reasons';
import { checked, finding, record, site } from './records';

const trans = nullTranslator.load('tpu_magics');
const SOURCE = 'if x > 1:\n    torch_xla.sync()\ny = x';

describe('badges and edits', () => {
  let memory: Memory;
  let cell: CellText;
  const at = (told: SiteReason[]): Badge[] => memory.badges(told, [cell]).get(0) ?? [];
  const edit = (source: string): void => {
    cell = { ...cell, source };
    memory.edited(cell.id, source);
  };

  beforeEach(() => {
    memory = new Memory();
    cell = { id: 'a', number: 3, source: SOURCE };
  });

  it('joins the reasons of a line, and keeps lines in their order', () => {
    const check = checked([
      finding({ site: site({ line: 3, code: 'y = x' }) }),
      finding({ site: site({ line: 1, code: 'if x > 1:' }) }),
      finding()
    ]);
    const badges = at(siteReasons(record([[2, {}]]), check, trans));
    expect(badges.map(one => [one.line, one.reasons.length])).toEqual([
      [1, 1],
      [2, 2],
      [3, 1]
    ]);
  });

  it('has none where the line says something else', () => {
    expect(at(siteReasons(record([[1, { site: site({ line: 3 }) }]]), null, trans))).toEqual([]);
    expect(at(siteReasons(record([[1, { site: site({ line: 30 }) }]]), null, trans))).toEqual([]);
  });

  it('takes all badges of an edited cell away, and does not bring them back when the edit is undone', () => {
    const told = siteReasons(record([[1, {}]]), null, trans);
    expect(at(told)).toHaveLength(1);
    edit(`${SOURCE} # edited elsewhere`);
    expect(at(told)).toEqual([]);
    edit(SOURCE);
    expect(at(told)).toEqual([]);
  });

  it('brings one back when a new record tells of it', () => {
    const told = siteReasons(record([[1, {}]]), null, trans);
    at(told);
    edit(`${SOURCE} `);
    expect(at(told)).toEqual([]);
    expect(at(siteReasons(record([[1, {}]], [], 'run-2'), null, trans))).toHaveLength(1);
  });

  it('brings none back when the line recompiles again in the same run', () => {
    at(siteReasons(record([[1, {}]]), null, trans));
    edit(`${SOURCE} `);
    const again = record([
      [2, {}],
      [1, { cause: 'new-code' }]
    ]);
    // The run goes on with the text of before: what it finds elsewhere in the cell is new.
    const names = at(siteReasons(again, null, trans)).map(one =>
      one.reasons.map(each => each.name)
    );
    expect(names).toEqual([['new-code']]);
  });

  it('brings findings back with another check', () => {
    const first = checked([finding()]);
    at(siteReasons(null, first, trans));
    edit(`${SOURCE} `);
    expect(at(siteReasons(null, first, trans))).toEqual([]);
    expect(at(siteReasons(null, checked([finding()]), trans))).toHaveLength(1);
  });

  it('knows nothing of cells that nothing was told of', () => {
    expect(memory.edited('z', 'x')).toBe(false);
    expect([...memory.ids]).toEqual([]);
  });
});

it('is quick with 10,000 lines in 500 cells', () => {
  const source = Array.from({ length: 20 }, (_, line) => `line_${line}()`).join('\n');
  const cells = Array.from({ length: 500 }, (_, at) => ({ id: `c${at}`, number: at, source }));
  const sites = Array.from({ length: 10_000 }, (_, at) =>
    site({
      cell_id: `c${at % 500}`,
      line: Math.floor(at / 500) + 1,
      code: `line_${Math.floor(at / 500)}()`
    })
  );
  const told = siteReasons(record(sites.map(one => [1, { site: one }])), null, trans);
  const began = performance.now();
  const found = new Memory().badges(told, cells);
  expect(performance.now() - began).toBeLessThan(2000);
  expect([...found.values()].flat()).toHaveLength(10_000);
});
