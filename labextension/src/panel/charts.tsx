// Several charts: one behind each tab, or side by side.

import * as React from 'react';
import { Chart as ChartData } from '../types';
import { Chart } from './chart';
import { useTrans } from './pieces';

/** One is shown, and the others are behind tabs: the loss first. */
export const Tabs = React.memo(function Tabs(props: {
  charts: readonly ChartData[];
  marks: readonly number[];
}): JSX.Element | null {
  const trans = useTrans();
  const [chosen, setChosen] = React.useState('');
  const list = React.useRef<HTMLDivElement>(null);
  const id = React.useId();
  const { charts, marks } = props;
  const at = Math.max(
    0,
    charts.findIndex(chart => chart.key === chosen)
  );
  if (charts.length === 0) {
    return null;
  }
  if (charts.length === 1) {
    return <Chart key={charts[0].key} chart={charts[0]} marks={marks} />;
  }
  const onKey = (event: React.KeyboardEvent): void => {
    const by = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (by !== 0) {
      const next = (at + by + charts.length) % charts.length;
      setChosen(charts[next].key);
      (list.current?.children[next] as HTMLElement | undefined)?.focus();
      event.preventDefault();
      event.stopPropagation();
    }
  };
  return (
    <div className="tpu-Tabbed">
      <div
        className="tpu-Tabs"
        role="tablist"
        aria-label={trans.__('Charts')}
        ref={list}
        onKeyDown={onKey}
      >
        {charts.map((chart, index) => (
          <button
            key={chart.key}
            type="button"
            role="tab"
            id={`${id}-${index}`}
            aria-selected={index === at}
            aria-controls={`${id}-panel`}
            tabIndex={index === at ? 0 : -1}
            onClick={() => setChosen(chart.key)}
          >
            {chart.title}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-${at}`}>
        <Chart key={charts[at].key} chart={charts[at]} marks={marks} untitled={true} />
      </div>
    </div>
  );
});

/** All of them, beside each other where there is room. */
export function Multiples(props: {
  charts: readonly ChartData[];
  marks: readonly number[];
}): JSX.Element | null {
  return props.charts.length === 0 ? null : (
    <div className="tpu-Charts">
      {props.charts.map(chart => (
        <Chart key={chart.key} chart={chart} marks={props.marks} small={true} />
      ))}
    </div>
  );
}
