// The findings of a check.

import * as React from 'react';
import { isBroken } from '../problems';
import { Problem } from '../types';
import { Chip, Fold, useTrans } from './pieces';
import { Problems } from './problems';

export const Findings = React.memo(function Findings(props: {
  findings: readonly Problem[];
  /** What was looked at, in words; null: nothing was. */
  checked: string | null;
  /** null: nobody can check here. */
  onCheck: (() => void) | null;
  checking: boolean;
  /** The answer to a check that was asked for here. */
  call: object | null;
}): JSX.Element | null {
  const trans = useTrans();
  const { findings, checked } = props;
  const broken = findings.filter(isBroken).length;
  if (props.onCheck === null && checked === null) {
    return null;
  }
  return (
    <Fold
      name="findings"
      call={props.call}
      title={trans.__('XLA rules')}
      summary={
        broken > 0 ? (
          <Chip tone="warning">{trans._n('%1 broken rule', '%1 broken rules', broken)}</Chip>
        ) : checked === null ? (
          trans.__('not checked')
        ) : (
          headline(findings, trans)
        )
      }
      closed={true}
    >
      <p>
        {checked === null
          ? trans.__('The rules find code that recompiles, before you train.')
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
      <Problems problems={findings} label={trans.__('Findings')} />
    </Fold>
  );
});

function headline(findings: readonly Problem[], trans: ReturnType<typeof useTrans>): string {
  const broken = findings.filter(isBroken).length;
  const advice = findings.length - broken;
  const parts = [
    broken > 0 ? trans._n('%1 broken rule', '%1 broken rules', broken) : '',
    advice > 0 ? trans.__('%1 advice', advice) : ''
  ].filter(part => part !== '');
  return parts.join(trans.__(' and ')) || trans.__('No broken rule');
}
