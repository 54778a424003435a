// Problems: what happens, at which line, and what to do.

import * as React from 'react';
import { Problem } from '../types';
import { CodeBlock, Mark, Place, TabStop, toneClass, useFirst, useTrans, Worded } from './pieces';

const AT_ONCE = 10;

export const Problems = React.memo(function Problems(props: {
  problems: readonly Problem[];
  label: string;
}): JSX.Element | null {
  const [problems, more] = useFirst(props.problems, AT_ONCE);
  if (problems.length === 0) {
    return null;
  }
  return (
    <>
      <ul className="tpu-Problems" aria-label={props.label}>
        {problems.map(problem => (
          <ProblemItem key={problem.key} problem={problem} />
        ))}
      </ul>
      {more}
    </>
  );
});

const ProblemItem = React.memo(function ProblemItem(props: { problem: Problem }): JSX.Element {
  const trans = useTrans();
  const { problem } = props;
  const { site } = problem;
  return (
    <TabStop
      as="li"
      className={`tpu-Problem ${toneClass(problem.tone)}`}
      data={{ 'data-kind': problem.kind }}
    >
      <div className="tpu-Problem-head">
        <Mark tone={problem.tone} />
        {problem.title ? (
          <b>
            <Worded>{problem.title}</Worded>
          </b>
        ) : (
          <span>
            <Worded>{problem.text}</Worded>
          </span>
        )}
        {problem.count && <span className="tpu-Small">{problem.count}</span>}
        {site && <Place site={site} />}
      </div>
      <div className="tpu-Problem-body">
        {problem.title && problem.text && (
          <p>
            <Worded>{problem.text}</Worded>
          </p>
        )}
        {problem.differences.length > 0 && (
          <CodeBlock lines={problem.differences} label={trans.__('Differences')} />
        )}
        {problem.fix && (
          <p className="tpu-Fix">
            <b>{trans.__('Fix:')}</b> <Worded>{problem.fix}</Worded>
          </p>
        )}
      </div>
    </TabStop>
  );
});
