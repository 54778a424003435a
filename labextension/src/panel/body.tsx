// The side panel's content.

import * as React from 'react';
import { KernelRuns } from '../model';
import { Page } from '../types';
import { otherVersion } from '../validate';
import { Compared } from './compared';
import { NoKernel, NoNotebook, NoRun, NotLoaded } from './empty';
import { Findings } from './findings';
import { useRuns } from './follow';
import { useTrans } from './pieces';
import { Run } from './run';
import { Runs } from './runs';
import { useListOfRuns } from './runslist';

/** What the panel can set off outside of itself; null: not here. */
export interface Actions {
  loadExtension: (() => void) | null;
  check: (() => void) | null;
  train: (() => void) | null;
  stop: () => void;
  /** Whether the notebook in front shows a run; and show it there. */
  isShown: (run: string) => boolean;
  showHere: ((page: Page) => void) | null;
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
      {runs.page !== null ? (
        <Shown runs={runs} actions={actions} />
      ) : (
        runs.connection === 'connected' && <Waiting runs={runs} actions={actions} />
      )}
      {runs.compared !== null && (
        <Compared comparison={runs.compared.comparison} onClose={() => runs.closeCompared()} />
      )}
      {runs.connection === 'connected' && <ListOfRuns runs={runs} />}
    </>
  );
}

function HostLine(props: { runs: KernelRuns; notebook: string }): JSX.Element {
  const trans = useTrans();
  const top = useTop(props.runs.opened?.id ?? '');
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
  const { page, latest } = runs;
  if (page === null) {
    return <></>;
  }
  const newest = page === latest;
  return (
    <Run
      key={page.id}
      page={page}
      lost={newest && runs.lost}
      stopping={newest && runs.stopping !== ''}
      onStop={newest && runs.live ? actions.stop : null}
    >
      {newest && runs.live && <ShowHere page={page} actions={actions} />}
      <Checked runs={runs} actions={actions} />
    </Run>
  );
}

/** Milliseconds until the output of a run that begins is there. */
const BEGUN = 5_000;

/** A page that was loaded again in the middle of a cell has lost the cell's output. */
function ShowHere({ page, actions }: { page: Page; actions: Actions }): JSX.Element | null {
  const trans = useTrans();
  const [waited, setWaited] = React.useState(false);
  React.useEffect(() => {
    const timer = setTimeout(() => setWaited(true), BEGUN);
    return () => clearTimeout(timer);
  }, []);
  if (!waited || actions.showHere === null || actions.isShown(page.id)) {
    return null;
  }
  const show = actions.showHere;
  return (
    <div className="tpu-Bar">
      <span>{trans.__('No cell of this notebook shows this run.')}</span>
      <button type="button" className="tpu-Button" onClick={() => show(page)}>
        {trans.__('Show the panel here')}
      </button>
    </div>
  );
}

/** The newest check. */
function Checked({ runs, actions }: { runs: KernelRuns; actions: Actions }): JSX.Element {
  return (
    <Findings
      findings={runs.findings}
      checked={runs.checked?.checked ?? null}
      onCheck={runs.connection === 'connected' ? actions.check : null}
      checking={runs.waitsFor('check')}
      call={runs.askedFor}
    />
  );
}

/** Connected, and no run is here. */
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
      shown={runs.page?.id ?? ''}
      waiting={runs.waitsFor('runs')}
      onOpen={open}
      onRefresh={refresh}
      onCompare={compare}
    />
  );
}
