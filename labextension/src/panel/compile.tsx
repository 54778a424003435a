// The details of one compile.

import * as React from 'react';
import { fullPlace, programMemory, seconds, shape, short } from '../format';
import { CompileEntry } from '../types';
import { Code, Place, useTrans, Worded } from './pieces';

const DIFFERENCES = 8;
const INPUTS = 24;

export function Details(props: { entry: CompileEntry }): JSX.Element {
  const trans = useTrans();
  const graph = props.entry.compile;
  const against = graph.nearest === null ? '' : ` ${trans.__('from #%1', graph.nearest)}`;
  return (
    <dl className="tpu-Details">
      <Detail head={trans.__('Line')}>
        <Place site={graph.site} />
        {graph.site.function && ` ${trans.__('in %1', short(graph.site.function, 80))}`}
        {graph.site.path.includes('/') && (
          <div className="tpu-Small">{fullPlace(graph.site, trans)}</div>
        )}
        {graph.site.code && (
          <div>
            <Code>{short(graph.site.code, 300)}</Code>
          </div>
        )}
      </Detail>
      {graph.part && (
        <Detail head={trans.__('Part')}>
          <Worded>{short(graph.part, 300)}</Worded>
        </Detail>
      )}
      {(graph.text || graph.recompile) && (
        <Detail head={graph.recompile ? trans.__('Cause') : trans.__('Note')}>
          <Worded>{short(graph.text || graph.cause || trans.__('unknown'), 400)}</Worded>
        </Detail>
      )}
      {graph.fix && (
        <Detail head={trans.__('Fix')}>
          <Worded>{short(graph.fix, 400)}</Worded>
        </Detail>
      )}
      {graph.difference.length > 0 && (
        <Detail head={`${trans.__('Difference')}${against}`}>
          <Codes items={graph.difference} most={DIFFERENCES} />
        </Detail>
      )}
      <Detail head={trans.__('Inputs')}>
        {graph.inputs.length > 0 ? (
          <Codes items={graph.inputs.map(shape)} most={INPUTS} />
        ) : (
          trans.__('none from the host')
        )}
      </Detail>
      <Detail head={trans.__('Program memory')}>
        {programMemory(graph.memory) || trans.__('n/a (not reported by the runtime)')}
      </Detail>
      <Detail head={trans.__('More')}>
        <Rest entry={props.entry} />
      </Detail>
    </dl>
  );
}

function Detail(props: { head: string; children: React.ReactNode }): JSX.Element {
  return (
    <div className="tpu-Detail">
      <dt>{props.head}</dt>
      <dd>{props.children}</dd>
    </div>
  );
}

function Codes(props: { items: string[]; most: number }): JSX.Element {
  const trans = useTrans();
  const left = props.items.length - props.most;
  return (
    <>
      {props.items.slice(0, props.most).map((item, at) => (
        <div key={at}>
          <Code>{short(item, 200)}</Code>
        </div>
      ))}
      {left > 0 && <div className="tpu-Small">{trans.__('and %1 more', left)}</div>}
    </>
  );
}

function Rest({ entry }: { entry: CompileEntry }): JSX.Element {
  const trans = useTrans();
  const graph = entry.compile;
  // No plain object: a code comes from a record, and may be "constructor".
  const triggers = new Map([
    ['sync', trans.__('triggered by the end of a step')],
    ['loader', trans.__('triggered by the data loader, which ends a step with each batch')],
    ['read', trans.__('triggered by a device-to-host read')],
    ['finish', trans.__('triggered by the end of the function')],
    ['library', trans.__("triggered by a library's own sync")]
  ]);
  const took = seconds(graph.seconds);
  const parts = [
    trans.__('rank %1', entry.rank),
    trans.__('site %1', graph.site.id),
    trans._n('after %2 step', 'after %2 steps', graph.step, graph.step.toLocaleString('en-US')),
    triggers.get(graph.trigger) ?? short(graph.trigger, 40),
    took === '' ? trans.__('time n/a') : trans.__('took %1', took),
    graph.host_collective
      ? trans.__(
          'split by host collectives into %1 pieces; a TPU compiles it as one graph',
          graph.pieces
        )
      : '',
    graph.by_rank ? trans.__('different on each rank') : '',
    graph.graph ? trans.__('graph %1', short(graph.graph, 40)) : ''
  ];
  return <>{parts.filter(part => part !== '').join(' · ')}</>;
}
