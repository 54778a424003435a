// The findings of the rules.

import * as React from 'react';
import { RuleFinding } from '../types';
import { Chip, Code, Place, Section, useTrans, Worded } from './pieces';

const AT_ONCE = 100;

export const Findings = React.memo(function Findings(props: {
  findings: RuleFinding[];
  /** What was looked at, in words; null: nothing was. */
  checked: string | null;
  /** null: nobody can check here. */
  onCheck: (() => void) | null;
  checking: boolean;
  /** The answer to a check that was asked for here. */
  call?: object | null;
}): JSX.Element | null {
  const trans = useTrans();
  const { findings, checked } = props;
  const broken = findings.filter(one => !one.advice).length;
  if (props.onCheck === null && findings.length === 0) {
    return null;
  }
  return (
    <Section
      name="findings"
      call={props.call}
      title={trans.__('XLA rules')}
      aside={
        broken > 0 ? (
          <Chip tone="warning">{trans._n('%1 broken rule', '%1 broken rules', broken)}</Chip>
        ) : null
      }
    >
      <p className="tpu-Line">
        {checked === null
          ? trans.__('Nothing checked yet. The rules find code that recompiles, before you train.')
          : trans.__('%1 in %2.', headline(findings, trans), checked)}
      </p>
      {props.onCheck !== null && (
        <button
          type="button"
          className="tpu-Button"
          disabled={props.checking}
          onClick={props.onCheck}
        >
          {props.checking ? trans.__('Checking…') : trans.__('Check for XLA rules')}
        </button>
      )}
      <ul className="tpu-List">
        {findings.slice(0, AT_ONCE).map((one, at) => (
          <Finding key={at} one={one} />
        ))}
      </ul>
      {findings.length > AT_ONCE && (
        <p className="tpu-Small">{trans.__('%1 more are not shown.', findings.length - AT_ONCE)}</p>
      )}
    </Section>
  );
});

function headline(findings: RuleFinding[], trans: ReturnType<typeof useTrans>): string {
  const broken = findings.filter(one => !one.advice).length;
  const advice = findings.length - broken;
  const parts = [
    broken > 0 ? trans._n('%1 broken rule', '%1 broken rules', broken) : '',
    advice > 0 ? trans.__('%1 advice', advice) : ''
  ].filter(part => part !== '');
  return parts.join(trans.__(' and ')) || trans.__('No broken rule');
}

function Finding({ one }: { one: RuleFinding }): JSX.Element {
  const trans = useTrans();
  return (
    <li>
      <Chip tone={one.advice ? '' : 'warning'}>
        {one.advice ? trans.__('advice %1', one.code) : one.code}
      </Chip>{' '}
      <Place site={one.site} /> <Worded>{one.message}</Worded>
      {one.site.code.trim() && (
        <div>
          <Code>{one.site.code.trim()}</Code>
        </div>
      )}
      {one.why && (
        <div>
          <b>{trans.__('Why:')}</b> <Worded>{one.why}</Worded>
        </div>
      )}
      {one.fix && (
        <div>
          <b>{trans.__('Fix:')}</b> <Worded>{one.fix}</Worded>
        </div>
      )}
    </li>
  );
}
