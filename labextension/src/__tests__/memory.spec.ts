import { beforeEach, describe, expect, it } from 'vitest';
import { CellText } from '../cells';
import { Memory } from '../memory';
import { Badge, SiteProblem, siteProblems } from '../problems';
import { FindingsMessage, Problem } from '../types';
import * as sample from './sample';

const SOURCE = 'if x > 1:\n    torch_xla.sync()\ny = x';
/** Line 2 of the cell `a`. */
const site = (more = {}) => sample.site({ path: 'In [3]', line: 2, cell_id: 'a', ...more });
const recompiled = (more: Partial<Problem> = {}): Problem =>
  sample.problem({ site: site(), ...more });
const rule = (more: Partial<Problem> = {}): Problem => sample.rule({ site: site(), ...more });
const ofRun = (problems: Problem[], id = 'run-1'): SiteProblem[] =>
  siteProblems([{ page: sample.done({ id, problems, sections: [] }), cell: '' }], null);
const ofCheck = (message: FindingsMessage): SiteProblem[] => siteProblems([], message);

describe('badges and edits', () => {
  let memory: Memory;
  let cell: CellText;
  const at = (told: SiteProblem[]): Badge[] => memory.badges(told, [cell]).get(0) ?? [];
  const edit = (source: string): void => {
    cell = { ...cell, source };
    memory.edited(cell.id, source);
  };

  beforeEach(() => {
    memory = new Memory();
    cell = { id: 'a', number: 3, source: SOURCE };
  });

  it('joins the problems of a line, and keeps lines in their order', () => {
    const told = ofRun([
      rule({ key: '3', site: site({ line: 3, code: 'y = x' }) }),
      rule({ key: '1', site: site({ line: 1, code: 'if x > 1:' }) }),
      rule({ tone: 'info' }),
      recompiled()
    ]);
    expect(at(told).map(one => [one.line, one.problems.map(each => each.problem.kind)])).toEqual([
      [1, ['rule']],
      [2, ['recompile', 'rule']],
      [3, ['rule']]
    ]);
  });

  it('has none where the line says something else', () => {
    expect(at(ofRun([recompiled({ site: site({ line: 3 }) })]))).toEqual([]);
    expect(at(ofRun([recompiled({ site: site({ line: 30 }) })]))).toEqual([]);
  });

  it('takes all badges of an edited cell away, and does not bring them back when the edit is undone', () => {
    const told = ofRun([recompiled()]);
    expect(at(told)).toHaveLength(1);
    edit(`${SOURCE} # edited elsewhere`);
    expect(at(told)).toEqual([]);
    edit(SOURCE);
    expect(at(told)).toEqual([]);
  });

  it('brings one back when a new run tells of it', () => {
    const told = ofRun([recompiled()]);
    at(told);
    edit(`${SOURCE} `);
    expect(at(told)).toEqual([]);
    expect(at(ofRun([recompiled()], 'run-2'))).toHaveLength(1);
  });

  it('brings none back when the line recompiles again in the same run', () => {
    at(ofRun([recompiled()]));
    edit(`${SOURCE} `);
    // The run goes on with the text of before: what it finds elsewhere in the cell is new.
    const badges = at(ofRun([recompiled({ times: 4 }), recompiled({ key: 'new-code' })]));
    expect(badges.map(one => one.problems.map(each => each.problem.key))).toEqual([['new-code']]);
  });

  it('brings findings back with another check', () => {
    const first = sample.messages.findings(null, [rule()]);
    at(ofCheck(first));
    edit(`${SOURCE} `);
    expect(at(ofCheck(first))).toEqual([]);
    expect(at(ofCheck(sample.messages.findings(null, [rule()])))).toHaveLength(1);
  });

  it('knows nothing of cells that nothing was told of', () => {
    expect(memory.edited('z', 'x')).toBe(false);
    expect([...memory.ids]).toEqual([]);
  });
});

it('is quick with 10,000 lines in 500 cells', () => {
  const source = Array.from({ length: 20 }, (_, line) => `line_${line}()`).join('\n');
  const cells = Array.from({ length: 500 }, (_, at) => ({ id: `c${at}`, number: at, source }));
  const problems = Array.from({ length: 10_000 }, (_, at) =>
    recompiled({
      key: `${at}`,
      site: site({
        cell_id: `c${at % 500}`,
        line: Math.floor(at / 500) + 1,
        code: `line_${Math.floor(at / 500)}()`
      })
    })
  );
  const began = performance.now();
  const found = new Memory().badges(ofRun(problems), cells);
  expect(performance.now() - began).toBeLessThan(2000);
  expect([...found.values()].flat()).toHaveLength(10_000);
});
