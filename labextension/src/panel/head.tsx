// The head of a run: state, figures, a failure, facts.

import * as React from 'react';
import { Fact, Figure, RunRecord, FailureText } from '../types';
import { Chip, Code, toneOf, useTrans, Worded } from './pieces';

const NOT_KNOWN = '-';
/** The shape of a curve in letters. */
const SHAPE = /^[▁-█!]+$/;

/** Name and state. `lost`: the kernel was restarted, and how the run ended is not known. */
export const Title = React.memo(function Title(props: {
  record: RunRecord;
  lost: boolean;
  stopping: boolean;
  children?: React.ReactNode;
}): JSX.Element {
  const trans = useTrans();
  const { view, said } = props.record;
  const state = props.lost ? trans.__('? unknown') : said.state;
  return (
    <div className="tpu-Title">
      <div className="tpu-Title-line">
        <h2 title={view.name}>{view.name}</h2>
        {props.children}
      </div>
      <p role="status">
        <span
          className={`tpu-State tpu-mod-${view.live && !props.lost ? 'live' : toneOf(said.tone) || 'plain'}`}
        >
          {state}
        </span>
        {props.stopping && <span className="tpu-Small"> {trans.__('stopping…')}</span>}
        <span className="tpu-Small"> {said.notes}</span>
      </p>
    </div>
  );
});

export const Figures = React.memo(function Figures(props: { figures: Figure[] }): JSX.Element {
  return (
    <dl className="tpu-Figures">
      {props.figures.map(each => (
        <div key={each.label} className={each.amber ? 'tpu-Figure tpu-mod-amber' : 'tpu-Figure'}>
          <dt>{each.label}</dt>
          <dd>
            <span className="tpu-Figure-value">
              {each.amber ? `! ${each.value}` : shown(each.value)}
            </span>
            <span className={SHAPE.test(each.beside) ? 'tpu-Spark' : 'tpu-Figure-beside'}>
              {each.beside}
            </span>
          </dd>
        </div>
      ))}
    </dl>
  );
});

function shown(value: string): string {
  return value === NOT_KNOWN ? '–' : value;
}

export const Facts = React.memo(function Facts(props: { facts: Fact[] }): JSX.Element {
  return (
    <dl className="tpu-Facts">
      {props.facts.map(fact => (
        <div key={fact.label} className="tpu-Fact">
          <dt>{fact.label}</dt>
          <dd>
            {fact.state && (
              <>
                <Chip tone={toneOf(fact.state)}>{fact.mark}</Chip>{' '}
              </>
            )}
            {fact.lines.map((line, at) => (
              <React.Fragment key={at}>
                {at > 0 && <br />}
                <Worded>{line}</Worded>
              </React.Fragment>
            ))}
            {fact.code && (
              <>
                <br />
                <Code>{fact.code}</Code>
              </>
            )}
          </dd>
        </div>
      ))}
    </dl>
  );
});

/** What ended the run. A run that the user stopped has not failed. */
export const Broken = React.memo(function Broken(props: { failure: FailureText }): JSX.Element {
  const trans = useTrans();
  const stopped = !props.failure.facts.some(fact => fact.state === 'broken');
  return (
    <div className={stopped ? 'tpu-Failure tpu-mod-stopped' : 'tpu-Failure'}>
      <Facts facts={props.failure.facts} />
      {props.failure.lines.length > 0 && (
        <pre className="tpu-Lines" tabIndex={0} aria-label={trans.__('Lines of the failure')}>
          {props.failure.lines.join('\n')}
        </pre>
      )}
    </div>
  );
});
