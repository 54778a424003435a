// Facts: a label each, and lines of text.

import * as React from 'react';
import { Fact } from '../types';
import { Chip, CodeBlock, Worded } from './pieces';

export const Facts = React.memo(function Facts(props: {
  facts: readonly Fact[];
}): JSX.Element | null {
  return props.facts.length === 0 ? null : (
    <dl className="tpu-Facts">
      {props.facts.map((fact, at) => (
        <FactRow key={`${fact.label} ${at}`} fact={fact} />
      ))}
    </dl>
  );
});

const FactRow = React.memo(function FactRow({ fact }: { fact: Fact }): JSX.Element {
  return (
    <div className="tpu-Fact">
      <dt>{fact.label}</dt>
      <dd>
        {fact.mark && (
          <>
            <Chip tone={fact.tone}>{fact.mark}</Chip>{' '}
          </>
        )}
        {fact.lines.map((line, at) => (
          <div key={at} className={at === 0 ? 'tpu-Fact-first' : undefined}>
            <Worded>{line}</Worded>
          </div>
        ))}
        {fact.code && <CodeBlock lines={[fact.code]} label={fact.label} />}
      </dd>
    </div>
  );
});
