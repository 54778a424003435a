// Every compile: a row each that unfolds, newest first; the causes together.

import * as React from 'react';
import { grouped, label, seconds, short } from '../format';
import { CauseCount, CompileEntry, RunRecord } from '../types';
import { Details } from './compile';
import { Chip, Place, Section, useTrans, Worded } from './pieces';

const AT_ONCE = 100;
const CAUSES = 12;
/** Causes that need no action: as in runs/events.py. */
const EXPECTED = ['new-part', 'optimizer-state'];
const COLUMNS = 5;

type Names = { [code: string]: string };

export const Compiles = React.memo(function Compiles(props: {
  log: CompileEntry[];
  causes: CauseCount[];
  names: Names;
  summary: string;
  compiles: number | null;
  recompiles: number | null;
  expected: number;
  lead: number;
}): JSX.Element {
  const trans = useTrans();
  const { log, names } = props;
  const recompiles = props.recompiles ?? 0;
  return (
    <Section
      name="compiles"
      title={trans.__('Compiles')}
      aside={
        recompiles > props.expected ? (
          <Chip tone="warning">
            {trans._n('%2 recompile', '%2 recompiles', recompiles, grouped(recompiles))}
          </Chip>
        ) : null
      }
    >
      <p className="tpu-Line">{props.summary}</p>
      <Causes causes={props.causes} names={names} />
      {log.length > 0 && <Log log={log} names={names} lead={props.lead} />}
      <Unseen shown={log.length} all={props.compiles ?? 0} />
    </Section>
  );
});

export function compilesOf({ view, said }: RunRecord): React.ComponentProps<typeof Compiles> {
  const { causes, compiles, recompiles, lead } = view;
  return {
    log: view.compile_log,
    causes,
    names: said.causes,
    summary: said.compiles,
    compiles,
    recompiles,
    expected: view.expected ?? 0,
    lead
  };
}

/** Of a long run a record holds the newest compiles only. */
function Unseen(props: { shown: number; all: number }): JSX.Element | null {
  const trans = useTrans();
  const left = props.all - props.shown;
  if (left <= 0 || props.shown === 0) {
    return null;
  }
  const text = trans._n(
    '%2 older one is in the run folder only.',
    '%2 older ones are in the run folder only.',
    left,
    grouped(left)
  );
  return <p className="tpu-Small">{text}</p>;
}

function Causes(props: { causes: CauseCount[]; names: Names }): JSX.Element | null {
  const trans = useTrans();
  const left = props.causes.length - CAUSES;
  if (props.causes.length === 0) {
    return null;
  }
  return (
    <>
      <ul className="tpu-Causes" aria-label={trans.__('Causes of recompiles')}>
        {props.causes.slice(0, CAUSES).map((each, at) => (
          <li key={at}>
            <span className="tpu-Causes-head">
              <b>{grouped(each.count)}×</b>{' '}
              {causeName(each.newest.cause, props.names) || trans.__('unknown')}{' '}
              <Place site={each.newest.site} />
              {each.seconds ? <span className="tpu-Small"> {seconds(each.seconds)}</span> : null}
            </span>
            <span className="tpu-Causes-fix">
              <Worded>{short(each.newest.fix || each.newest.text, 300)}</Worded>
            </span>
          </li>
        ))}
      </ul>
      {left > 0 && (
        <p className="tpu-Small">
          {trans._n('and %2 more cause', 'and %2 more causes', left, grouped(left))}
        </p>
      )}
    </>
  );
}

/** "" where there is none. The code comes from a record: it may be "constructor". */
export function causeName(code: string, names: Names): string {
  return (Object.hasOwn(names, code) && names[code]) || code;
}

function Log(props: { log: CompileEntry[]; names: Names; lead: number }): JSX.Element {
  const trans = useTrans();
  const [most, setMost] = React.useState(AT_ONCE);
  const left = props.log.length - most;
  return (
    <>
      <table className="tpu-Table tpu-Compiles">
        <caption className="tpu-Hidden">{trans.__('Each compile, newest first')}</caption>
        <thead>
          <tr>
            <th scope="col">{trans.__('compile')}</th>
            <th scope="col">{trans.__('line')}</th>
            <th scope="col">{trans.__('took')}</th>
            <th scope="col">{trans.__('cause')}</th>
            <th scope="col" className="tpu-Wide">
              {trans.__('difference')}
            </th>
          </tr>
        </thead>
        <tbody>
          {props.log.slice(0, most).map(entry => (
            <Row
              key={entry.key}
              entry={entry}
              cause={causeName(entry.compile.cause, props.names) || trans.__('unknown')}
              lead={props.lead}
            />
          ))}
        </tbody>
      </table>
      {left > 0 && (
        <button type="button" className="tpu-Button" onClick={() => setMost(most + AT_ONCE)}>
          {trans.__('Show %1 more (of %2)', Math.min(AT_ONCE, left), grouped(left))}
        </button>
      )}
    </>
  );
}

interface RowProps {
  entry: CompileEntry;
  cause: string;
  lead: number;
}

/** Entries stay the same objects while the log grows, so that a row is drawn once. */
const Row = React.memo(function Row({ entry, cause, lead }: RowProps): JSX.Element {
  const trans = useTrans();
  const [open, setOpen] = React.useState(false);
  const graph = entry.compile;
  const id = React.useId();
  const toggle = () => setOpen(!open);
  const expected = EXPECTED.includes(graph.cause);
  const more = expected ? 0 : graph.difference.length - 1;
  const part = graph.part || graph.text;
  const first = expected ? part : (graph.difference[0] ?? part);
  const difference = `${first}${more > 0 ? ` ${trans.__('(and %1 more)', more)}` : ''}`;
  return (
    <>
      <tr
        className={graph.recompile && !expected ? 'tpu-mod-recompile' : ''}
        onClick={toggle}
        data-key={entry.key}
      >
        <th scope="row">
          <button
            type="button"
            className="tpu-Unfold"
            aria-expanded={open}
            aria-controls={id}
            onClick={event => {
              event.stopPropagation();
              toggle();
            }}
          >
            <span className="tpu-Caret" aria-hidden="true" />
            {label(graph)}
          </button>
        </th>
        <td>
          <Place site={graph.site} />
          {entry.rank !== lead && (
            <span className="tpu-Small"> {trans.__('rank %1', entry.rank)}</span>
          )}
        </td>
        <td className="tpu-Number">{seconds(graph.seconds) || trans.__('n/a')}</td>
        <td className="tpu-Cause">{graph.recompile ? cause : trans.__('first compile')}</td>
        <td className="tpu-Wide tpu-Cut" title={difference}>
          {short(difference, 140)}
        </td>
      </tr>
      {open && (
        <tr className="tpu-Unfolded" id={id}>
          <td colSpan={COLUMNS}>
            <Details entry={entry} />
          </td>
        </tr>
      )}
    </>
  );
});
