// Runs beside each other: what differs first, and their losses over each other.

import * as React from 'react';
import { ComparedRow, Comparison } from '../types';
import { Curves } from './chart';
import { Fold, Notes, useTrans } from './pieces';
import { Table } from './table';

export const Compared = React.memo(function Compared(props: {
  comparison: Comparison;
  onClose: () => void;
}): JSX.Element {
  const trans = useTrans();
  const { title, runs, different, equal, charts, notes } = props.comparison;
  const curves = React.useMemo(
    () => charts.map((chart, at) => ({ title: runs[at] ?? chart.title, points: chart.points })),
    [charts, runs]
  );
  const [first] = charts;
  return (
    <Fold
      name="compared"
      title={title || trans.__('Two runs')}
      aside={
        <button type="button" className="tpu-Button" onClick={props.onClose}>
          {trans.__('Close')}
        </button>
      }
    >
      {first && <Curves title={first.title} curves={curves} axis={first.axis} x={first.x} />}
      <Rows label={trans.__('Different')} runs={runs} rows={different} />
      {equal.length > 0 && (
        <details className="tpu-Equal">
          <summary>{trans._n('%1 row is equal', '%1 rows are equal', equal.length)}</summary>
          <Rows label={trans.__('Equal')} runs={runs} rows={equal} />
        </details>
      )}
      <Notes lines={notes} />
    </Fold>
  );
});

function Rows(props: {
  label: string;
  runs: readonly string[];
  rows: readonly ComparedRow[];
}): JSX.Element | null {
  return props.rows.length === 0 ? null : (
    <Table
      label={props.label}
      columns={['', ...props.runs]}
      rows={props.rows.map(({ label, cells }) => ({
        cells: [label, ...cells],
        tone: '',
        site: null
      }))}
    />
  );
}
