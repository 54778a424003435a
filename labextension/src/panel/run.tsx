// A run: its page, in the order of the other front ends, in the side panel and in the output of a cell, while it goes on and after.

import * as React from 'react';
import { FailureText, Figure, Page, Progress as ProgressData, Section } from '../types';
import { Multiples, Tabs } from './charts';
import { Facts } from './facts';
import { Around, CodeBlock, Fold, Notes, toneClass, useAround, useTrans, Worded } from './pieces';
import { Problems } from './problems';
import { Items, Table } from './table';

export interface RunProps {
  page: Page;
  /** The kernel no longer tells of it, and did not tell how it ended. */
  lost: boolean;
  stopping: boolean;
  /** null: it cannot be stopped from here. */
  onStop: (() => void) | null;
  /** What of a saved run could not be read. */
  faults?: readonly string[];
  /** Between the problems and what is folded. */
  children?: React.ReactNode;
}

export function Run(props: RunProps): JSX.Element {
  const { page, lost } = props;
  const around = useAround();
  const trans = around.trans;
  const named = React.useMemo(() => ({ ...around, name: page.name }), [around, page.name]);
  return (
    <Around.Provider value={named}>
      <article className="tpu-Run" data-run={page.id}>
        <Head {...props} />
        {page.progress !== null && !lost && <Progress progress={page.progress} />}
        {page.failure !== null && <Failure failure={page.failure} />}
        <Tabs charts={page.charts} marks={page.compiled_at} />
        <Figures figures={page.figures} />
        <Problems problems={page.problems} label={trans.__('Problems')} />
        {props.children}
        {page.sections.map(section => (
          <Part key={section.key} section={section} marks={page.compiled_at} />
        ))}
        <Unread faults={props.faults ?? []} />
        <p className="tpu-Small tpu-Footer">{page.footer}</p>
      </article>
    </Around.Provider>
  );
}

/** Name, state, where and how long, in one line where there is room. */
function Head({ page, lost, stopping, onStop }: RunProps): JSX.Element {
  const trans = useTrans();
  const state = lost ? trans.__('? unknown') : `${page.symbol} ${page.state}`;
  const tone = lost ? '' : page.tone;
  return (
    <header className="tpu-Title">
      <div className="tpu-Title-line">
        <h2 title={page.name}>{page.name}</h2>
        <span role="status" className={`tpu-State ${toneClass(tone)}`}>
          {stopping ? `${page.symbol} ${trans.__('stopping…')}` : state}
        </span>
        <span className="tpu-Title-where">
          {[page.where, page.elapsed].filter(Boolean).join(' · ')}
        </span>
        {onStop !== null && (
          <button
            type="button"
            className="tpu-Button tpu-mod-stop"
            disabled={stopping}
            title={trans.__('Stop this run; its records are kept')}
            onClick={onStop}
          >
            {stopping ? trans.__('Stopping…') : trans.__('Stop')}
          </button>
        )}
      </div>
      {page.detail && (
        <p className="tpu-Small">
          <Worded>{page.detail}</Worded>
        </p>
      )}
      {lost && (
        <p className="tpu-Bar tpu-mod-warning">
          {trans.__('The kernel no longer reports this run. This is its last known state.')}
        </p>
      )}
    </header>
  );
}

const Progress = React.memo(function Progress(props: { progress: ProgressData }): JSX.Element {
  const trans = useTrans();
  const { done, total, text } = props.progress;
  const share = total > 0 ? Math.min(1, Math.max(0, done / total)) : 0;
  return (
    <div className="tpu-Progress">
      <div
        className="tpu-Progress-bar"
        role="progressbar"
        aria-label={trans.__('Progress')}
        aria-valuemin={0}
        aria-valuemax={total}
        aria-valuenow={done}
        aria-valuetext={text}
      >
        <div style={{ width: `${(100 * share).toFixed(2)}%` }} />
      </div>
      <span>{text}</span>
    </div>
  );
});

/** What ended the run. A run that its user stopped has not failed. */
const Failure = React.memo(function Failure(props: { failure: FailureText }): JSX.Element {
  const trans = useTrans();
  const { tone, what, why, todo, lines } = props.failure;
  return (
    <div className={`tpu-Failure ${toneClass(tone)}`}>
      {what && (
        <p className="tpu-Failure-what">
          <Worded>{what}</Worded>
        </p>
      )}
      {why && (
        <p>
          <b>{trans.__('Why:')}</b> <Worded>{why}</Worded>
        </p>
      )}
      {todo && (
        <p>
          <b>{trans.__('What to do:')}</b> <Worded>{todo}</Worded>
        </p>
      )}
      {lines.length > 0 && <CodeBlock lines={lines} label={trans.__('Lines of the failure')} />}
    </div>
  );
});

const Figures = React.memo(function Figures(props: {
  figures: readonly Figure[];
}): JSX.Element | null {
  return props.figures.length === 0 ? null : (
    <dl className="tpu-Figures">
      {props.figures.map(figure => (
        <OneFigure key={figure.label} figure={figure} />
      ))}
    </dl>
  );
});

const OneFigure = React.memo(function OneFigure({ figure }: { figure: Figure }): JSX.Element {
  const { label, value, note, hint, tone } = figure;
  const warns = tone === 'warning' || tone === 'broken';
  return (
    <div className={`tpu-Figure ${toneClass(tone)}`} title={hint || undefined}>
      <dt>{label}</dt>
      <dd>
        <span className="tpu-Figure-value">{warns ? `! ${value}` : value}</span>
        <span className="tpu-Figure-note">{note}</span>
        {hint && <span className="tpu-Hidden"> {hint}</span>}
      </dd>
    </div>
  );
});

/** What is folded: its facts, charts, table, items, problems and notes. */
const Part = React.memo(function Part(props: {
  section: Section;
  marks: readonly number[];
}): JSX.Element {
  const { key, title, summary, facts, charts, columns, rows, items, problems, notes } =
    props.section;
  return (
    <Fold name={key} title={title} summary={summary.replace(/`/g, '')} closed={true}>
      <Facts facts={facts} />
      <Multiples charts={charts} marks={props.marks} />
      {rows.length > 0 && <Table label={title} columns={columns} rows={rows} />}
      {items.length > 0 && <Items label={title} columns={columns} items={items} />}
      <Problems problems={problems} label={title} />
      <Notes lines={notes} />
    </Fold>
  );
});

function Unread(props: { faults: readonly string[] }): JSX.Element | null {
  const trans = useTrans();
  if (props.faults.length === 0) {
    return null;
  }
  return (
    <p className="tpu-Bar tpu-mod-warning">
      {trans.__('Not all of this run could be read: %1.', props.faults.slice(0, 5).join('; '))}
    </p>
  );
}
