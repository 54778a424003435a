// One run: what the side panel and the output of a saved notebook have in common.

import * as React from 'react';
import { RunRecord } from '../types';
import { Charts } from './charts';
import { Compiles, compilesOf } from './compiles';
import { Broken, Facts, Figures, Title } from './head';
import { Likeness, Ranks, Reads, Warnings } from './parts';
import { useTrans } from './pieces';

export function Run(props: {
  record: RunRecord;
  lost?: boolean;
  stopping?: boolean;
  /** Beside the name. */
  buttons?: React.ReactNode;
  /** The findings, which a run has of its own where nothing else is known of them. */
  findings: React.ReactNode;
}): JSX.Element {
  const { view, said } = props.record;
  return (
    <article className="tpu-Run" data-run={view.id}>
      <Title record={props.record} lost={props.lost === true} stopping={props.stopping === true}>
        {props.buttons}
      </Title>
      {props.lost && <Lost />}
      {said.failure !== null && <Broken failure={said.failure} />}
      <Figures figures={said.figures} />
      <Facts facts={said.facts} />
      <Warnings notices={said.notices} />
      <Compiles {...compilesOf(props.record)} />
      <Charts view={view} />
      <Ranks ranks={said.ranks} />
      <Reads transfers={view.transfers} reads={view.reads} />
      {props.findings}
      <Likeness likeness={said.likeness} />
      <p className="tpu-Small tpu-Footer">{said.footer}</p>
    </article>
  );
}

function Lost(): JSX.Element {
  const trans = useTrans();
  return (
    <p className="tpu-Bar tpu-mod-warning">
      {trans.__('The kernel no longer reports this run. This is its last known state.')}
    </p>
  );
}
