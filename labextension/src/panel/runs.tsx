// The list of earlier runs, to open one or to compare two.

import * as React from 'react';
import { clock, grouped, moment, toNumber } from '../format';
import { ComparedTable, RunLine, Tone } from '../types';
import { Chip, Notes, Section, toneOf, useTrans } from './pieces';
import { Table } from './table';

const AT_ONCE = 20;
const TONES = new Map<string, Tone>([
  ['done', 'ok'],
  ['failed', 'broken'],
  ['timeout', 'broken'],
  ['refused', 'broken'],
  ['lost', 'warning']
]);

export interface RunsProps {
  runs: RunLine[] | null;
  shown: string;
  waiting: boolean;
  onOpen: (id: string) => void;
  onRefresh: () => void;
  onCompare: (first: string, second: string) => void;
}

export const Runs = React.memo(function Runs(props: RunsProps): JSX.Element {
  const trans = useTrans();
  const [chosen, setChosen] = React.useState<string[]>([]);
  const [most, setMost] = React.useState(AT_ONCE);
  const runs = props.runs ?? [];
  const picked = chosen.filter(id => runs.some(run => run.id === id));
  const pick = (id: string) =>
    setChosen(picked.includes(id) ? picked.filter(one => one !== id) : [...picked.slice(-1), id]);
  return (
    <Section
      name="runs"
      title={trans.__('Runs')}
      aside={<span className="tpu-Small">{runs.length > 0 ? grouped(runs.length) : ''}</span>}
    >
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
      {runs.length === 0 ? (
        <p className="tpu-Small">
          {props.runs === null
            ? trans.__('The list is not loaded yet.')
            : trans.__('No runs in this folder.')}
        </p>
      ) : (
        <ul className="tpu-Runs">
          {runs.slice(0, most).map(run => (
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
      {runs.length > most && (
        <button type="button" className="tpu-Button" onClick={() => setMost(most + AT_ONCE)}>
          {trans.__(
            'Show %1 more (of %2)',
            Math.min(AT_ONCE, runs.length - most),
            grouped(runs.length)
          )}
        </button>
      )}
    </Section>
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
    run.steps === null ? '' : trans._n('%2 step', '%2 steps', run.steps, grouped(run.steps)),
    run.compiles === null
      ? ''
      : trans._n('%2 compile', '%2 compiles', run.compiles, grouped(run.compiles)),
    run.recompiles === null
      ? ''
      : trans._n('%2 recompile', '%2 recompiles', run.recompiles, grouped(run.recompiles))
  ];
  return (
    <li className={props.shown ? 'tpu-mod-shown' : ''} data-run={run.id}>
      <input
        type="checkbox"
        checked={props.picked}
        aria-label={trans.__('Select %1 to compare', run.name)}
        onChange={() => props.onPick(run.id)}
      />
      <div>
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
    </li>
  );
}

export const Compared = React.memo(function Compared(props: {
  table: ComparedTable;
  onClose: () => void;
}): JSX.Element {
  const trans = useTrans();
  const { columns, rows, notes, title } = props.table;
  return (
    <Section
      name="compared"
      title={title || trans.__('Two runs')}
      aside={
        <button type="button" className="tpu-Button" onClick={props.onClose}>
          {trans.__('Close')}
        </button>
      }
    >
      <Table
        label={title}
        columns={columns}
        rows={rows.map(row => row.cells)}
        marks={rows.map(row => (row.state ? `tpu-mod-${toneOf(row.state)}` : ''))}
      />
      <Notes lines={notes} />
    </Section>
  );
});
