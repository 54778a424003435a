// What is said at the lines of a notebook: the problems of runs and the findings of a check.

import { TranslationBundle } from '@jupyterlab/translation';
import { FindingsMessage, Kind, Page, Problem, ProfileMessage, Site, Tone } from './types';

/** `key` is another in each run and each check: an edit takes a problem away for as long as its key is known. */
export interface KeyedProblem {
  key: string;
  problem: Problem;
}

/** A problem that has a line, and words for it. */
export interface SiteProblem extends KeyedProblem {
  site: Site;
}

/** All that is said at one line (counted from 1); the worst comes first. */
export interface Badge {
  line: number;
  problems: KeyedProblem[];
}

/** A run that a notebook shows. `cell`: the one whose output it is; "": none. */
export interface ShownRun {
  page: Page;
  cell: string;
}

/** The worst first. */
const TONES: readonly Tone[] = ['broken', 'warning', 'info', 'live', '', 'ok'];

/** The problems of these runs and of the newest check, and the lines of the newest profile. A cell's lines have those of the run that its own output shows, or
 * else those of the newest run of its code. */
export function siteProblems(
  runs: readonly ShownRun[],
  checked: FindingsMessage | null,
  profiled: ProfileMessage | null = null
): SiteProblem[] {
  const newest = new Map<string, Page | null>();
  const isNewest = (page: Page, cell: string): boolean => {
    newest.set(cell, newest.has(cell) ? newest.get(cell)! : newestOf(cell, runs));
    return newest.get(cell) === page;
  };
  const pages = new Set(runs.map(run => run.page));
  const told = [...pages].flatMap(page =>
    keyed(page.problems, page.id).filter(({ site }) => isNewest(page, site.cell_id))
  );
  const known = new Set(told.map(one => placeOf(one.problem, one.site)));
  const check = keyed(checked?.findings ?? [], `check ${numberOf(checked)}`);
  // What a run has found as well is said once.
  return [
    ...told,
    ...check.filter(one => !known.has(placeOf(one.problem, one.site))),
    ...keyed(profiled?.lines ?? [], `profile ${numberOf(profiled)}`)
  ];
}

/** The run whose problems the lines of a cell have. Ids begin with the time. */
function newestOf(cell: string, runs: readonly ShownRun[]): Page | null {
  const own = runs.filter(run => cell !== '' && run.cell === cell);
  const all = own.length > 0 ? own : runs.filter(run => sitesOf(run.page).has(cell));
  return all.reduce<Page | null>(
    (best, { page }) => (best === null || page.id > best.id ? page : best),
    null
  );
}

const sites = new WeakMap<Page, Set<string>>();

/** The cells whose code a run tells of. */
export function sitesOf(page: Page): Set<string> {
  let found = sites.get(page);
  if (found === undefined) {
    const rows = page.sections.flatMap(section => [...section.rows, ...section.items]);
    found = new Set(
      [...page.problems, ...rows].flatMap(one => (one.site ? [one.site.cell_id] : []))
    );
    sites.set(page, found);
  }
  return found;
}

function keyed(problems: readonly Problem[], of: string): SiteProblem[] {
  return problems.flatMap(problem =>
    problem.site && problem.badge
      ? [{ site: problem.site, key: `${of}\n${problem.key}`, problem }]
      : []
  );
}

function placeOf(problem: Problem, site: Site): string {
  return [problem.key, site.cell_id || site.path, site.line].join('\n');
}

/** Advice breaks nothing. */
export function isBroken({ tone }: Problem): boolean {
  return tone === 'warning' || tone === 'broken';
}

/** A number for each answer of a check, and each profile: one that comes again tells its lines anew. */
const numbers = new WeakMap<object, number>();
let newest = 0;

function numberOf(answer: FindingsMessage | ProfileMessage | null): number {
  if (answer !== null && !numbers.has(answer)) {
    numbers.set(answer, ++newest);
  }
  return answer === null ? 0 : numbers.get(answer)!;
}

// -- what a badge says -----------------------------------------------------------------------------------------------

export function worstFirst(problems: readonly KeyedProblem[]): KeyedProblem[] {
  const rank = (one: KeyedProblem): number => TONES.indexOf(one.problem.tone);
  return [...problems].sort((one, other) => rank(one) - rank(other));
}

export const toneOf = (badge: Badge): Tone => badge.problems[0].problem.tone;
export const kindOf = (badge: Badge): Kind => badge.problems[0].problem.kind;

/** The few words of a badge: "recompiled 3×", "TPU303 changing number, 1 more". */
export function wordsOf({ problems }: Badge, trans: TranslationBundle): string {
  const [{ problem }] = problems;
  const more = problems.length - 1;
  return more > 0 ? trans.__('%1, %2 more', problem.badge, more) : problem.badge;
}

/** For those who hear it: first what is to be seen, so that it can be called by it. */
export function spoken(badge: Badge, trans: TranslationBundle): string {
  const titles = badge.problems.map(one => one.problem.title).join('. ');
  return trans.__('%1. Line %2. %3', wordsOf(badge, trans), badge.line, titles);
}
