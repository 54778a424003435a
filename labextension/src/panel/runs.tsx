// The list of earlier runs, to open one or to compare two.

import * as React from 'react';
import { clock, grouped, moment, toNumber } from '../format';
import { Num, RunLine, Tone } from '../types';
import { Chip, Fold, TabStop, useFirst, useTrans } from './pieces';

const AT_ONCE = 20;
const TONES = new Map<string, Tone>([
  ['done', 'ok'],
  ['failed', 'broken'],
  ['timeout', 'broken'],
  ['refused', 'broken'],
  ['lost', 'warning']
]);

export interface RunsProps {
  runs: readonly RunLine[] | null;
  shown: string;
  waiting: boolean;
  onOpen: (id: string) => void;
  onRefresh: () => void;
  onCompare: (first: string, second: string) => void;
}

export const Runs = React.memo(function Runs(props: RunsProps): JSX.Element {
  const trans = useTrans();
  const [chosen, setChosen] = React.useState<string[]>([]);
  const all = props.runs ?? [];
  const [runs, more] = useFirst(all, AT_ONCE);
  const picked = chosen.filter(id => all.some(run => run.id === id));
  const pick = (id: string): void =>
    setChosen(picked.includes(id) ? picked.filter(one => one !== id) : [...picked.slice(-1), id]);
  return (
    <Fold name="runs" title={trans.__('Runs')} summary={all.length > 0 ? grouped(all.length) : ''}>
      <div className="tpu-Buttons">
        <button
          type="button"
          className="tpu-Button"
          disabled={picked.length !== 2}
          title={trans.__('Select two runs to compare them')}
          onClick={() => props.onCompare(picked[0], picked[1])}
        >
          {trans.__('Compare selected')}
        </button>
        <button
          type="button"
          className="tpu-Button"
          disabled={props.waiting}
          onClick={props.onRefresh}
        >
          {props.waiting ? trans.__('Loading…') : trans.__('Refresh')}
        </button>
      </div>
      {all.length === 0 ? (
        <p className="tpu-Small">
          {props.runs === null
            ? trans.__('The list is not loaded yet.')
            : trans.__('No runs in this folder.')}
        </p>
      ) : (
        <ul className="tpu-Runs">
          {runs.map(run => (
            <Line
              key={run.id}
              run={run}
              shown={run.id === props.shown}
              picked={picked.includes(run.id)}
              onPick={pick}
              onOpen={props.onOpen}
            />
          ))}
        </ul>
      )}
      {more}
    </Fold>
  );
});

function Line(props: {
  run: RunLine;
  shown: boolean;
  picked: boolean;
  onPick: (id: string) => void;
  onOpen: (id: string) => void;
}): JSX.Element {
  const trans = useTrans();
  const { run } = props;
  const took = toNumber(run.seconds);
  const parts = [
    moment(run.created),
    Number.isFinite(took) ? clock(took) : '',
    run.workers !== null && run.workers > 1 ? trans.__('%1 workers', run.workers) : '',
    run.value,
    run.steps === null ? '' : trans._n('%2 step', '%2 steps', run.steps, grouped(run.steps)),
    run.compiles === null
      ? ''
      : trans._n('%2 compile', '%2 compiles', run.compiles, grouped(run.compiles)),
    run.recompiles === null
      ? ''
      : trans._n('%2 recompile', '%2 recompiles', run.recompiles, grouped(run.recompiles))
  ];
  return (
    <TabStop as="li" className={props.shown ? 'tpu-mod-shown' : ''} data={{ 'data-run': run.id }}>
      <div className="tpu-Runs-line">
        <button
          type="button"
          className="tpu-Link"
          title={run.id}
          aria-current={props.shown}
          onClick={() => props.onOpen(run.id)}
        >
          {run.name}
        </button>{' '}
        <Chip tone={TONES.get(run.status) ?? ''}>{run.status}</Chip>
        {props.shown && <span className="tpu-Small"> {trans.__('shown above')}</span>}
        <div className="tpu-Small">{parts.filter(part => part !== '').join(' · ')}</div>
      </div>
      <Spark values={run.curve} />
      <input
        type="checkbox"
        checked={props.picked}
        aria-label={trans.__('Select %1 to compare', run.name)}
        onChange={() => props.onPick(run.id)}
      />
    </TabStop>
  );
}

const WIDE = 64;
const HIGH = 20;

/** The loss of a run, small; its numbers stand in the run itself. */
const Spark = React.memo(function Spark(props: { values: readonly Num[] }): JSX.Element {
  const numbers = props.values.map(toNumber).filter(Number.isFinite);
  const low = Math.min(...numbers);
  const span = Math.max(...numbers) - low || 1;
  const path = numbers.map((value, at) => {
    const x = (at / Math.max(1, numbers.length - 1)) * (WIDE - 2) + 1;
    return `${at ? 'L' : 'M'}${x.toFixed(1)} ${(HIGH - 2 - ((value - low) / span) * (HIGH - 4)).toFixed(1)}`;
  });
  return (
    <svg className="tpu-Spark" viewBox={`0 0 ${WIDE} ${HIGH}`} aria-hidden="true">
      {numbers.length > 1 && <path d={path.join('')} />}
    </svg>
  );
});
