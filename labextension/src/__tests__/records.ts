// What badges are made of, for tests: records with causes at lines, and what a check found.

import { Compile, FindingsMessage, RuleFinding, RunRecord, Site } from '../types';
import * as sample from './sample';

/** Line 2 of the cell `a`. */
export const site = (more: Partial<Site> = {}): Site => ({
  ...sample.SITE,
  path: 'In [3]',
  line: 2,
  cell_id: 'a',
  ...more
});

export const finding = (more: Partial<RuleFinding> = {}): RuleFinding =>
  sample.finding({ site: site(), ...more });

/** A run with these causes: how often, and how the newest compile differs from the usual one. */
export const record = (
  counts: [number, Partial<Compile>][],
  findings: RuleFinding[] = [],
  id = 'run-1'
): RunRecord => {
  const causes = counts.map(([count, more]) => ({
    count,
    seconds: 1,
    newest: sample.compile(1, { site: site(), ...more })
  }));
  return sample.record({ id, causes, findings }, { causes: {} });
};

export const checked = (findings: RuleFinding[]): FindingsMessage => ({
  ...sample.messages.findings(),
  findings
});
