// A curve with its axes.

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { across, Dot, draw, Drawn, HIGH, nearest, WIDE } from '../curve';
import { useTrans } from './pieces';

export interface ChartProps {
  title: string;
  /** What stands beside the title. */
  caption: string;
  dots: Dot[];
  format: (value: number) => string;
  /** What stands under the ends of the axis. */
  first: string;
  last: string;
  /** The place of a dot in words, for the one that is pointed at. */
  where: (dot: Dot) => string;
  /** Where on the axis a value was not a finite number, and the words for it. */
  broken?: { x: number; text: string } | null;
}

export const Chart = React.memo(
  function Chart(props: ChartProps): JSX.Element | null {
    const trans = useTrans();
    const [at, setAt] = React.useState<number | null>(null);
    const drawn = React.useMemo(() => draw(props.dots), [props.dots]);
    return (
      <figure className="tpu-Chart">
        <figcaption>
          <b>{props.title}</b> <span className="tpu-Small">{props.caption}</span>
          {props.broken && <span className="tpu-Warn"> ! {props.broken.text}</span>}
        </figcaption>
        {drawn === null ? (
          <Nothing />
        ) : (
          <>
            <div className="tpu-Chart-plot">
              <div className="tpu-Chart-y" aria-hidden="true">
                <span>{props.format(drawn.high)}</span>
                <span>{drawn.low === drawn.high ? '' : props.format(drawn.low)}</span>
              </div>
              <svg
                viewBox={`0 0 ${WIDE} ${HIGH}`}
                preserveAspectRatio="none"
                role="img"
                aria-label={heard(props, drawn, trans)}
                onPointerMove={event => setAt(pointed(event))}
                onPointerLeave={() => setAt(null)}
              >
                {props.broken && <Bar x={across(props.broken.x, drawn.first, drawn.last)} />}
                {drawn.band && <path className="tpu-Chart-band" d={drawn.band} />}
                <path className="tpu-Chart-line" d={drawn.line} />
                {drawn.alone.map(([x, y]) => (
                  <path key={x} className="tpu-Chart-line tpu-mod-alone" d={`M${x} ${y}h0`} />
                ))}
                {at !== null && <Cross dot={nearest(props.dots, at)} drawn={drawn} />}
              </svg>
            </div>
            <div className="tpu-Chart-x">
              {at === null ? (
                <>
                  <span>{props.first}</span>
                  <span>{props.last}</span>
                </>
              ) : (
                <span className="tpu-Chart-told">{told(nearest(props.dots, at), props)}</span>
              )}
            </div>
          </>
        )}
      </figure>
    );
  },
  (a, b) => a.dots === b.dots && a.caption === b.caption && a.last === b.last && a.title === b.title
);

function Nothing(): JSX.Element {
  const trans = useTrans();
  return (
    <p className="tpu-Small">{trans.__('No curve: fewer than two values are finite numbers.')}</p>
  );
}

function Bar(props: { x: number }): JSX.Element {
  return <path className="tpu-Chart-broken" d={`M${(props.x * WIDE).toFixed(1)} 0V${HIGH}`} />;
}

function Cross(props: { dot: Dot; drawn: Drawn }): JSX.Element {
  const x = across(props.dot.x, props.drawn.first, props.drawn.last) * WIDE;
  return <path className="tpu-Chart-cross" d={`M${x.toFixed(1)} 0V${HIGH}`} />;
}

/** What the axes show, for those who do not see them. */
function heard(props: ChartProps, drawn: Drawn, trans: TranslationBundle): string {
  const range = trans.__('between %1 and %2', props.format(drawn.low), props.format(drawn.high));
  return `${props.title}: ${props.caption}; ${range}`;
}

function told(dot: Dot, props: ChartProps): string {
  if (Number.isNaN(dot.y)) {
    return `${props.where(dot)}: –`;
  }
  const range = dot.low < dot.high ? ` (${props.format(dot.low)} – ${props.format(dot.high)})` : '';
  return `${props.where(dot)}: ${props.format(dot.y)}${range}`;
}

function pointed(event: React.PointerEvent<SVGSVGElement>): number {
  const box = event.currentTarget.getBoundingClientRect();
  return Math.min(1, Math.max(0, (event.clientX - box.left) / Math.max(1, box.width)));
}
