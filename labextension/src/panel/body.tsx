// The side panel's content.

import * as React from 'react';
import { KernelRuns } from '../model';
import { otherVersion } from '../validate';
import { NoKernel, NoNotebook, NoRun, NotLoaded } from './empty';
import { Findings } from './findings';
import { useTrans } from './pieces';
import { Run } from './run';
import { Compared, Runs } from './runs';
import { useListOfRuns } from './runslist';

/** What the panel can set off outside of itself; null: not here. */
export interface Actions {
  loadExtension: (() => void) | null;
  check: (() => void) | null;
  train: (() => void) | null;
  stop: () => void;
}

/** Draws again with each change of `runs`; where nobody sees it, once when it comes into sight. */
export function useRuns(runs: KernelRuns | null, visible = true): void {
  const [, again] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => {
    if (!visible) {
      return;
    }
    runs?.changed.connect(again);
    again();
    return () => {
      runs?.changed.disconnect(again);
    };
  }, [runs, visible]);
}

export function Body(props: {
  runs: KernelRuns | null;
  notebook: string | null;
  actions: Actions;
  /** Whether anybody can see it. */
  visible?: boolean;
}): JSX.Element {
  const { runs, notebook, actions, visible = true } = props;
  useRuns(runs, visible);
  useListOfRuns(runs, visible);
  if (notebook === null) {
    return <NoNotebook />;
  }
  if (runs === null) {
    return <NoKernel />;
  }
  return (
    <>
      <HostLine runs={runs} notebook={notebook} />
      <Bars runs={runs} />
      {runs.connection !== 'connected' && runs.mismatch === '' && (
        <NotLoaded restarted={runs.connection === 'restarted'} onLoad={actions.loadExtension} />
      )}
      {runs.record !== null ? (
        <Shown runs={runs} actions={actions} />
      ) : (
        runs.connection === 'connected' && <Waiting runs={runs} actions={actions} />
      )}
      {runs.compared !== null && (
        <Compared table={runs.compared.table} onClose={() => runs.closeCompared()} />
      )}
      {runs.connection === 'connected' && <ListOfRuns runs={runs} />}
    </>
  );
}

function HostLine(props: { runs: KernelRuns; notebook: string }): JSX.Element {
  const trans = useTrans();
  const top = useTop(props.runs.opened?.view.id ?? '');
  const { hello } = props.runs;
  const unknown = hello === null ? '' : trans.__('Run %tpu_init to detect the hardware');
  return (
    <p className="tpu-Host" ref={top}>
      <span title={hello?.host?.detail}>{hello?.host?.title ?? unknown}</span>
      <span className="tpu-Small" title={props.notebook}>
        {props.notebook}
      </span>
    </p>
  );
}

/** The panel goes to its top when another run is opened: the list that it is chosen from is at the bottom. */
function useTop(opened: string): React.RefObject<HTMLParagraphElement> {
  const top = React.useRef<HTMLParagraphElement>(null);
  const before = React.useRef(opened);
  React.useEffect(() => {
    if (before.current !== opened) {
      before.current = opened;
      top.current?.scrollIntoView?.({ block: 'center' });
    }
  }, [opened]);
  return top;
}

function Bars({ runs }: { runs: KernelRuns }): JSX.Element {
  const trans = useTrans();
  return (
    <>
      {runs.mismatch && (
        <p className="tpu-Bar tpu-mod-warning" role="alert">
          {otherVersion(runs.mismatch, trans)}
        </p>
      )}
      {runs.opened !== null && <OpenedBar runs={runs} />}
      {runs.problem !== null && (
        <div className="tpu-Bar tpu-mod-broken" role="alert">
          <span>
            <b>{runs.problem.what}</b> {runs.problem.why} {runs.problem.todo}
          </span>
          <button type="button" className="tpu-Button" onClick={() => runs.closeProblem()}>
            {trans.__('Close')}
          </button>
        </div>
      )}
    </>
  );
}

function OpenedBar({ runs }: { runs: KernelRuns }): JSX.Element {
  const trans = useTrans();
  const back = runs.live
    ? trans.__('Back to the live run')
    : runs.latest === null
      ? trans.__('Close')
      : trans.__('Back to the newest run');
  return (
    <div className="tpu-Bar">
      <span>{trans.__('This is an earlier run.')}</span>
      <button type="button" className="tpu-Button" onClick={() => runs.showLatest()}>
        {back}
      </button>
    </div>
  );
}

function Shown({ runs, actions }: { runs: KernelRuns; actions: Actions }): JSX.Element {
  const trans = useTrans();
  const record = runs.record;
  if (record === null) {
    return <></>;
  }
  const newest = record === runs.latest;
  const stop = newest && runs.live && (
    <button
      type="button"
      className="tpu-Button tpu-mod-stop"
      disabled={runs.stopping !== ''}
      title={trans.__('Stop this run; its records are kept')}
      onClick={actions.stop}
    >
      {runs.stopping ? trans.__('Stopping…') : trans.__('Stop')}
    </button>
  );
  return (
    <Run
      key={record.view.id}
      record={record}
      lost={newest && runs.lost}
      stopping={newest && runs.stopping !== ''}
      buttons={stop}
      findings={<Checked runs={runs} actions={actions} />}
    />
  );
}

/** Of a check, or else of the rules that looked before the run. */
function Checked({ runs, actions }: { runs: KernelRuns; actions: Actions }): JSX.Element {
  const trans = useTrans();
  const before = runs.record?.view.findings ?? [];
  const known = runs.checked !== null && runs.opened === null;
  return (
    <Findings
      findings={known ? runs.findings : before}
      checked={
        known
          ? (runs.checked?.checked ?? '')
          : before.length > 0
            ? trans.__('the code, found before the run')
            : null
      }
      onCheck={runs.connection === 'connected' ? actions.check : null}
      checking={runs.waitsFor('check')}
      call={runs.askedFor}
    />
  );
}

/** Connected, and no record is here. */
function Waiting({ runs, actions }: { runs: KernelRuns; actions: Actions }): JSX.Element {
  const trans = useTrans();
  if (runs.hello?.live || runs.waitsFor('open')) {
    return (
      <p className="tpu-Bar" role="status">
        {runs.deaf
          ? trans.__(
              'A run is active. The kernel answers when its cell has ended; the run is shown then.'
            )
          : trans.__('Loading the run…')}
      </p>
    );
  }
  return (
    <>
      <NoRun onTrain={actions.train} onCheck={null} />
      <Checked runs={runs} actions={actions} />
    </>
  );
}

function ListOfRuns({ runs }: { runs: KernelRuns }): JSX.Element {
  const open = React.useCallback((id: string) => runs.open(id), [runs]);
  const refresh = React.useCallback(() => runs.refreshRuns(), [runs]);
  const compare = React.useCallback(
    (first: string, second: string) => runs.compare(first, second),
    [runs]
  );
  return (
    <Runs
      runs={runs.runs}
      shown={runs.record?.view.id ?? ''}
      waiting={runs.waitsFor('runs')}
      onOpen={open}
      onRefresh={refresh}
      onCompare={compare}
    />
  );
}
