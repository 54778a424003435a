// The panel without a run: what is missing, and what to do next.

import * as React from 'react';
import { Code, useTrans } from './pieces';

export interface Action {
  label: string;
  onClick: () => void;
}

export function Empty(props: {
  head: string;
  children: React.ReactNode;
  actions?: (Action | null)[];
}): JSX.Element {
  const actions = (props.actions ?? []).filter((each): each is Action => each !== null);
  return (
    <div className="tpu-Empty">
      <h2>{props.head}</h2>
      <p>{props.children}</p>
      {actions.length > 0 && (
        <div className="tpu-Buttons">
          {actions.map((each, at) => (
            <button
              key={each.label}
              type="button"
              className={at === 0 ? 'tpu-Button tpu-mod-first' : 'tpu-Button'}
              onClick={each.onClick}
            >
              {each.label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

export function NoNotebook(): JSX.Element {
  const trans = useTrans();
  return (
    <Empty head={trans.__('No notebook is open')}>
      {trans.__(
        'Open a notebook that trains. Its run is shown here while you scroll and work elsewhere.'
      )}
    </Empty>
  );
}

export function NoKernel(): JSX.Element {
  const trans = useTrans();
  return (
    <Empty head={trans.__('This notebook has no kernel')}>
      {trans.__('Choose a kernel at the upper right of the notebook. Its runs are shown here.')}
    </Empty>
  );
}

export function NotLoaded(props: { restarted: boolean; onLoad: (() => void) | null }): JSX.Element {
  const trans = useTrans();
  const head = props.restarted
    ? trans.__('The kernel was restarted')
    : trans.__('tpu_magics is not loaded in this notebook');
  const load = props.onLoad && { label: trans.__('Load tpu_magics'), onClick: props.onLoad };
  return (
    <Empty head={head} actions={[load]}>
      {trans.__('Run this in a cell, or use the button:')} <Code>%load_ext tpu_magics</Code>
    </Empty>
  );
}

export function NoRun(props: {
  onTrain: (() => void) | null;
  onCheck: (() => void) | null;
}): JSX.Element {
  const trans = useTrans();
  return (
    <Empty
      head={trans.__('No run yet')}
      actions={[
        props.onTrain && { label: trans.__('Train on TPU'), onClick: props.onTrain },
        props.onCheck && { label: trans.__('Check for XLA rules'), onClick: props.onCheck }
      ]}
    >
      {trans.__(
        'Select the cell with your training function and add this at its top, or use the button:'
      )}{' '}
      <Code>%%tpu_train</Code>
    </Empty>
  );
}
