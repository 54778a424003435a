import { nullTranslator } from '@jupyterlab/translation';
import { describe, expect, it } from 'vitest';
import {
  Badge,
  kindOf,
  siteProblems,
  ShownRun,
  spoken,
  toneOf,
  wordsOf,
  worstFirst
} from '../problems';
import { Page, Problem, Tone } from '../types';
import { done, item, messages, problem, rule, section, site } from './sample';

const trans = nullTranslator.load('tpu_magics');
const shown = (page: Page, cell = ''): ShownRun => ({ page, cell });
const run = (id: string, problems: Problem[], more: Partial<Page> = {}): Page =>
  done({ id, problems, sections: [], ...more });
const checked = (...found: Problem[]) => messages.findings(null, found);
const keys = (...args: Parameters<typeof siteProblems>): string[] =>
  siteProblems(...args).map(one => one.key);

describe('what is said at lines', () => {
  it('is nothing without a run and a check', () => {
    expect(siteProblems([], null)).toEqual([]);
  });

  it('is each problem that has a line and words for it', () => {
    const problems = [
      problem(),
      problem({ key: 'b', site: null }),
      problem({ key: 'c', badge: '' })
    ];
    expect(keys([shown(run('a', problems))], null)).toEqual([`a\n${problem().key}`]);
  });

  it('is said once where the check has found it as well', () => {
    expect(keys([shown(run('a', [rule()]))], checked(rule()))).toEqual([`a\n${rule().key}`]);
    const moved = rule({ site: site({ line: 15 }) });
    expect(keys([shown(run('a', [rule()]))], checked(moved))).toHaveLength(2);
  });

  it('is new with each answer of a check, and the same while it is the same answer', () => {
    const answer = checked(rule());
    expect(keys([], answer)).toEqual(keys([], answer));
    expect(keys([], answer)).not.toEqual(keys([], checked(rule())));
  });

  it('has the lines of the newest profile as well, new with each', () => {
    const line = problem({ key: 'line', kind: 'message', tone: 'info', badge: '84 % of the step' });
    const told = siteProblems([], checked(rule()), messages.profile(line));
    expect(told.map(one => one.problem.badge)).toEqual([rule().badge, '84 % of the step']);
    expect(keys([], null, messages.profile(line))).not.toEqual(
      keys([], null, messages.profile(line))
    );
  });

  it('is new with another run, and the same however often the line recompiles in one', () => {
    const first = keys([shown(run('a', [problem()]))], null);
    expect(keys([shown(run('a', [problem({ times: 9, badge: 'recompiled 9x' })]))], null)).toEqual(
      first
    );
    expect(keys([shown(run('b', [problem()]))], null)).not.toEqual(first);
  });
});

describe('of several runs', () => {
  const inCell = (cell_id: string, key = 'x'): Problem => problem({ key, site: site({ cell_id }) });

  it('a cell has that which its output shows, also when another cell trained later', () => {
    const runs = [
      shown(run('2026-1', [inCell('a')]), 'a'),
      shown(run('2026-2', [inCell('b'), inCell('a', 'y')]), 'b')
    ];
    expect(keys(runs, null).sort()).toEqual(['2026-1\nx', '2026-2\nx']);
  });

  it('a cell without an output has the newest of its code', () => {
    const runs = [
      shown(run('2026-2', [inCell('a', 'new')]), 'c'),
      shown(run('2026-1', [inCell('a', 'old')]), 'b')
    ];
    expect(keys(runs, null)).toEqual(['2026-2\nnew']);
  });

  it('a newer one without problems takes those of the older away', () => {
    const fixed = run('2026-2', [], {
      sections: [section({ items: [item(0, { site: site({ cell_id: 'a' }) })] })]
    });
    expect(keys([shown(run('2026-1', [inCell('a')]), 'b'), shown(fixed, 'c')], null)).toEqual([]);
  });

  it('each is looked at once, though an output and the kernel show it', () => {
    const page = run('2026-1', [inCell('a')]);
    expect(keys([shown(page, 'a'), shown(page)], null)).toEqual(['2026-1\nx']);
  });
});

describe('a badge', () => {
  const badge = (...problems: Problem[]): Badge => ({
    line: 14,
    problems: worstFirst(problems.map(one => ({ key: one.key, problem: one })))
  });

  it.each<[Problem[], string, Tone, string]>([
    [[problem()], 'recompiled 3x', 'warning', 'recompile'],
    [[rule()], 'TPU101 value read', 'warning', 'rule'],
    [[rule({ tone: 'info' }), problem()], 'recompiled 3x, 1 more', 'warning', 'recompile'],
    [[problem(), rule({ tone: 'broken' }), rule()], 'TPU101 value read, 2 more', 'broken', 'rule']
  ])('%#: has the words and the colour of the worst', (problems, words, tone, kind) => {
    const one = badge(...problems);
    expect([wordsOf(one, trans), toneOf(one), kindOf(one)]).toEqual([words, tone, kind]);
  });

  it('is spoken with the line and every title', () => {
    expect(spoken(badge(problem(), rule()), trans)).toBe(
      'recompiled 3x, 1 more. Line 14. Recompiles: the shape of an input changes. TPU101 value read'
    );
  });
});
