// Why a line has a badge: its recompiles, and the rules that it breaks.

import { TranslationBundle } from '@jupyterlab/translation';
import { CauseCount, FindingsMessage, RuleFinding, RunRecord, Site } from './types';

export type Kind = 'recompile' | 'rule' | 'advice';

/** One reason. `key` is another in each run and each check: an edit takes a reason away for as long as its key is known.
 * `count`: how often; `code`: lines to show as code. */
export interface Reason {
  key: string;
  kind: Kind;
  count: number;
  name: string;
  title: string;
  code: string[];
  texts: string[];
  fix: string;
}

/** A reason and where it is. */
export interface SiteReason {
  site: Site;
  reason: Reason;
}

/** All that is said at one line (counted from 1). */
export interface Badge {
  line: number;
  reasons: Reason[];
}

const KINDS: readonly Kind[] = ['recompile', 'rule', 'advice'];
const MOST_DIFFERENCES = 4;

/** The reasons of the newest run and the newest check. The kernel counts the causes, one for each line: ten thousand
 * compiles cost no more than ten. */
export function siteReasons(
  record: RunRecord | null,
  checked: FindingsMessage | null,
  trans: TranslationBundle
): SiteReason[] {
  const run = record?.view.id ?? '';
  const causes = (record?.view.causes ?? []).map(cause => recompiled(cause, run, record, trans));
  const found = (record?.view.findings ?? []).map(finding => broken(finding, run, trans));
  const check = checked?.findings ?? [];
  const fresh = check.map(finding => broken(finding, `check ${numberOf(checked)}`, trans));
  const known = new Set(check.map(placeOf));
  // What the check has found as well is said once.
  return [
    ...causes,
    ...found.filter((_, at) => !known.has(placeOf(record!.view.findings[at]))),
    ...fresh
  ];
}

function recompiled(
  cause: CauseCount,
  run: string,
  record: RunRecord | null,
  trans: TranslationBundle
): SiteReason {
  const { newest, count } = cause;
  const told = newest.difference.filter(one => !newest.text.includes(one));
  const left = told.length - MOST_DIFFERENCES;
  const more =
    left > 0 ? [trans._n('and %1 more difference', 'and %1 more differences', left)] : [];
  return {
    site: newest.site,
    reason: {
      key: [run, newest.cause, placeOf(newest)].join('\n'),
      kind: 'recompile',
      count,
      name: nameOf(newest.cause, record),
      title: trans._n('Recompiled once', 'Recompiled %1 times', count),
      code: [...told.slice(0, MOST_DIFFERENCES), ...more],
      texts: [newest.text].filter(Boolean),
      fix: newest.fix
    }
  };
}

function nameOf(code: string, record: RunRecord | null): string {
  const names = record?.said.causes ?? {};
  // The code comes from a record: it may be "constructor".
  return Object.hasOwn(names, code) ? names[code] : code;
}

function broken(finding: RuleFinding, told: string, trans: TranslationBundle): SiteReason {
  return {
    site: finding.site,
    reason: {
      key: [told, finding.code, placeOf(finding)].join('\n'),
      kind: finding.advice ? 'advice' : 'rule',
      count: 1,
      name: finding.code,
      title: finding.advice ? trans.__('Advice') : trans.__('Breaks a rule of XLA'),
      code: [],
      texts: [finding.message, finding.why].filter(Boolean),
      fix: finding.fix
    }
  };
}

function placeOf(one: { site: Site; code?: string }): string {
  const { cell_id, path, line } = one.site;
  return [one.code ?? '', cell_id || path, line].join('\n');
}

/** A number for each answer of a check: an answer that comes again tells its findings anew. */
const numbers = new WeakMap<object, number>();
let newest = 0;

function numberOf(checked: FindingsMessage | null): number {
  if (checked !== null && !numbers.has(checked)) {
    numbers.set(checked, ++newest);
  }
  return checked === null ? 0 : numbers.get(checked)!;
}

// -- what a badge says -----------------------------------------------------------------------------------------------

/** What comes first decides how the badge looks. */
export function kindOf(badge: Badge): Kind {
  return KINDS.find(kind => badge.reasons.some(reason => reason.kind === kind)) ?? 'advice';
}

const WORD: { [kind in Kind]: (trans: TranslationBundle) => string } = {
  recompile: trans => trans.__('recompiled'),
  rule: trans => trans.__('rule'),
  advice: trans => trans.__('advice')
};

/** The few words of a badge: "recompiled 3×", "rule TPU101", "rule, 2 reasons", "recompiled 3×, 2 reasons". */
export function wordsOf(badge: Badge, trans: TranslationBundle): string {
  const { reasons } = badge;
  const times = reasons.reduce((sum, one) => sum + (one.kind === 'recompile' ? one.count : 0), 0);
  const parts: string[] = [];
  if (times > 0) {
    parts.push(times === 1 ? WORD.recompile(trans) : trans.__('recompiled %1×', times));
  } else if (reasons.length > 1) {
    parts.push(WORD[kindOf(badge)](trans));
  } else {
    parts.push(`${WORD[reasons[0].kind](trans)} ${reasons[0].name}`);
  }
  if (reasons.length > 1) {
    parts.push(trans._n('%1 reason', '%1 reasons', reasons.length));
  }
  return parts.join(', ');
}

/** For those who hear it: first what is to be seen, so that it can be called by it. */
export function spoken(badge: Badge, trans: TranslationBundle): string {
  const names = badge.reasons.map(one => `${one.title}: ${one.name}`).join('. ');
  return trans.__('%1. Line %2. %3', wordsOf(badge, trans), badge.line, names);
}
