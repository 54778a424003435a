// A chart with its caption and its buttons.

import * as React from 'react';
import { Curve, Drawing, isCurve, isPositive, valuesText } from '../curves';
import { Plot } from '../plot';
import { Axis, Chart as ChartData } from '../types';
import { useAround, useTrans } from './pieces';

/** Values that those hear who do not see the curve. */
const HEARD = 12;
const NO_MARKS: readonly number[] = [];

/** One curve of a run. `marks`: steps after which something was compiled. */
export const Chart = React.memo(function Chart(props: {
  chart: ChartData;
  marks: readonly number[];
  small?: boolean;
  /** Its title stands above it already. */
  untitled?: boolean;
}): JSX.Element {
  const { chart } = props;
  const marks = chart.marked ? props.marks : NO_MARKS;
  const { points, axis, x, title, saved: saves } = chart;
  const drawing = React.useMemo(
    () => ({ curves: [{ title, points }], axis, x, marks, saves }),
    [title, points, axis, x, marks, saves]
  );
  return (
    <Figure
      title={title}
      caption={chart.caption}
      warning={chart.warning}
      drawing={drawing}
      small={props.small === true}
      untitled={props.untitled === true}
    />
  );
});

/** Curves of several runs over each other. */
export function Curves(props: {
  title: string;
  curves: readonly Curve[];
  axis: Axis;
  x: string;
}): JSX.Element {
  const { title, curves, axis, x } = props;
  const drawing = React.useMemo(
    () => ({ curves, axis, x, marks: NO_MARKS, saves: NO_MARKS }),
    [curves, axis, x]
  );
  return <Figure title={title} caption="" warning="" drawing={drawing} />;
}

function Figure(props: {
  title: string;
  caption: string;
  warning: string;
  drawing: Drawing;
  small?: boolean;
  untitled?: boolean;
}): JSX.Element {
  const trans = useTrans();
  const { title, caption, drawing } = props;
  const [log, setLog] = React.useState(false);
  const [zoomed, setZoomed] = React.useState(false);
  const host = React.useRef<HTMLDivElement>(null);
  const pointed = React.useRef<HTMLSpanElement>(null);
  const plot = React.useRef<Plot | null>(null);
  const id = React.useId();
  const drawn = drawing.curves.some(curve => isCurve(curve.points));
  const logs = log && isPositive(drawing.curves);
  React.useLayoutEffect(() => {
    if (host.current === null) {
      return;
    }
    const hover = (text: string): void => {
      pointed.current?.replaceChildren(text);
      host.current?.setAttribute('aria-valuetext', text);
    };
    const made = new Plot(host.current, { trans, log: logs, hover, zoom: setZoomed });
    plot.current = made;
    return () => {
      made.dispose();
      plot.current = null;
      hover('');
      setZoomed(false);
    };
  }, [trans, logs, drawn]);
  // After the one above, which makes the plot that this one fills.
  React.useLayoutEffect(() => plot.current?.show(drawing), [drawing, logs, drawn]);
  return (
    <figure className={props.small ? 'tpu-Chart tpu-mod-small' : 'tpu-Chart'} aria-labelledby={id}>
      <figcaption>
        <span className="tpu-Chart-title" id={id}>
          <b className={props.untitled ? 'tpu-Hidden' : undefined}>{title}</b>{' '}
          <span className="tpu-Chart-caption">{caption}</span>
        </span>
        {props.warning && <span className="tpu-Warn">! {props.warning}</span>}
        <Key drawing={drawing} />
        <span className="tpu-Chart-pointed" ref={pointed} aria-hidden="true" />
        {drawn && (
          <span className="tpu-Chart-buttons">
            {zoomed && (
              <button type="button" className="tpu-Tool" onClick={() => plot.current?.reset()}>
                {trans.__('Reset zoom')}
              </button>
            )}
            {isPositive(drawing.curves) && (
              <button
                type="button"
                className="tpu-Tool"
                aria-pressed={log}
                title={trans.__('Logarithmic scale')}
                onClick={() => setLog(!log)}
              >
                {trans.__('Log')}
              </button>
            )}
            <Save title={title} plot={plot} />
          </span>
        )}
      </figcaption>
      {drawn ? (
        <>
          <Canvas host={host} plot={plot} name={`${title} ${caption}`} />
          <p className="tpu-Hidden">{valuesText(drawing, HEARD, trans)}</p>
        </>
      ) : (
        <p className="tpu-Small">
          {trans.__('No curve: fewer than two values are finite numbers.')}
        </p>
      )}
    </figure>
  );
}

/** Where it is drawn. Arrow keys point at its values. */
function Canvas(props: {
  host: React.RefObject<HTMLDivElement>;
  plot: React.RefObject<Plot | null>;
  name: string;
}): JSX.Element {
  const trans = useTrans();
  const [place, setPlace] = React.useState<[number, number]>([0, 1]);
  const onKey = (event: React.KeyboardEvent): void => {
    const by = STEPS.get(event.key);
    if (by !== undefined && props.plot.current !== null) {
      setPlace(props.plot.current.step(by));
      event.preventDefault();
      event.stopPropagation();
    }
  };
  return (
    <div
      className="tpu-Chart-plot"
      ref={props.host}
      role="slider"
      tabIndex={0}
      aria-label={props.name}
      aria-valuemin={0}
      aria-valuemax={Math.max(0, place[1] - 1)}
      aria-valuenow={place[0]}
      data-lm-suppress-shortcuts="true"
      title={trans.__('Drag to zoom in, double-click to zoom out')}
      onKeyDown={onKey}
    />
  );
}

const STEPS = new Map([
  ['ArrowLeft', -1],
  ['ArrowRight', 1],
  ['PageDown', 10],
  ['PageUp', -10],
  ['Home', -Infinity],
  ['End', Infinity]
]);

/** What the dashed lines and the marks are, and which curve is which. */
function Key({ drawing }: { drawing: Drawing }): JSX.Element | null {
  const trans = useTrans();
  const { curves, marks, saves } = drawing;
  if (curves.length === 1 && marks.length === 0 && saves.length === 0) {
    return null;
  }
  return (
    <span className="tpu-Chart-key">
      {curves.length > 1 &&
        curves.map((curve, at) => (
          <span key={at} data-curve={1 + (at % 6)}>
            {curve.title}
          </span>
        ))}
      {marks.length > 0 && <span data-curve="mark">{trans.__('compiled')}</span>}
      {saves.length > 0 && <span data-curve="saved">{trans.__('saved')}</span>}
    </span>
  );
}

/** Into the person's downloads. */
function Save(props: { title: string; plot: React.RefObject<Plot | null> }): JSX.Element {
  const trans = useTrans();
  const { name } = useAround();
  const save = (): void => {
    const title = [name, props.title].filter(Boolean).join(': ');
    props.plot.current?.picture(title)?.toBlob(blob => {
      if (blob !== null) {
        const link = document.createElement('a');
        link.href = URL.createObjectURL(blob);
        link.download = `${title.replace(/[^\w.-]+/g, '-').slice(0, 100)}.png`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      }
    });
  };
  return (
    <button type="button" className="tpu-Tool" title={trans.__('Save as picture')} onClick={save}>
      {trans.__('PNG')}
    </button>
  );
}
