// The curves of a run: what was logged, step rate and time, memory; and what has no curve.

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { Dot, dotsOf, dotsOfNumbers } from '../curve';
import { grouped, rate, seconds, shortNumber, size, toNumber } from '../format';
import { Num, RunView, ValueSeries } from '../types';
import { Chart } from './chart';
import { Scroll, Section, useTrans } from './pieces';

const AT_ONCE = 6;

export const Charts = React.memo(
  function Charts(props: { view: RunView }): JSX.Element {
    const trans = useTrans();
    const [all, setAll] = React.useState(false);
    const { view } = props;
    const curves = charted(view.values);
    const left = curves.length - AT_ONCE;
    return (
      <Section name="charts" title={trans.__('Charts')}>
        {view.values.length === 0 && (
          <p className="tpu-Small">
            {trans.__('No values logged. Log one with tpu_magics.log(loss=loss).')}
          </p>
        )}
        <div className="tpu-Charts">
          {(all ? curves : curves.slice(0, AT_ONCE)).map(series => (
            <Logged key={series.name} series={series} />
          ))}
          <Rates rates={view.rates} live={view.live} />
          <Memory bytes={view.memory_curve} live={view.live} lead={view.lead} />
        </div>
        {left > 0 && !all && (
          <button type="button" className="tpu-Button" onClick={() => setAll(true)}>
            {trans._n('Show %1 more curve', 'Show %1 more curves', left)}
          </button>
        )}
        <Values series={view.values.filter(each => !curves.includes(each))} />
      </Section>
    );
  },
  (a, b) =>
    a.view.values === b.view.values &&
    a.view.rates === b.view.rates &&
    a.view.memory_curve === b.view.memory_curve &&
    a.view.live === b.view.live
);

/** The names that get a curve: the loss first. */
export function charted(values: ValueSeries[]): ValueSeries[] {
  const curves = values.filter(series => series.points.length > 1);
  const loss =
    curves.find(each => each.name === 'loss') ?? curves.find(each => /loss/i.test(each.name));
  return loss === undefined ? curves : [loss, ...curves.filter(each => each !== loss)];
}

function Logged({ series }: { series: ValueSeries }): JSX.Element {
  const trans = useTrans();
  const dots = React.useMemo(() => dotsOf(series.points), [series.points]);
  return (
    <Chart
      title={series.name}
      caption={captionOf(series)}
      dots={dots}
      format={shortNumber}
      first={trans.__('step %1', grouped(series.points[0].step))}
      last={trans.__('step %1', grouped(series.step))}
      where={dot => trans.__('step %1', grouped(dot.x))}
      broken={brokenOf(series, trans)}
    />
  );
}

/** E.g. "2.316 → 0.125". */
export function captionOf(series: ValueSeries): string {
  const first = series.first === null ? '' : `${shortNumber(toNumber(series.first))} → `;
  return `${first}${shortNumber(series.last)}`;
}

function brokenOf(
  series: ValueSeries,
  trans: TranslationBundle
): { x: number; text: string } | null {
  const at = series.not_finite_at;
  return at === null
    ? null
    : { x: at, text: trans.__('not a finite number at step %1', grouped(at)) };
}

/** Steps a second, and its other side: seconds a step, compiles included. */
function Rates(props: { rates: Num[]; live: boolean }): JSX.Element | null {
  const trans = useTrans();
  const rates = React.useMemo(() => dotsOfNumbers(props.rates), [props.rates]);
  const times = React.useMemo(() => rates.map(inverse), [rates]);
  if (rates.length < 2) {
    return null;
  }
  const ends = endsOf(props.live, trans);
  return (
    <>
      <Chart
        title={trans.__('Step rate')}
        caption={trans.__('%1 steps/s', newest(rates, rate))}
        dots={rates}
        format={rate}
        {...ends}
      />
      <Chart
        title={trans.__('Step time')}
        caption={trans.__('%1, with compiles', newest(times, seconds))}
        dots={times}
        format={seconds}
        {...ends}
      />
    </>
  );
}

function inverse(dot: Dot): Dot {
  const y = dot.y > 0 ? 1 / dot.y : NaN;
  return { x: dot.x, y, low: y, high: y };
}

function Memory(props: { bytes: Num[]; live: boolean; lead: number }): JSX.Element | null {
  const trans = useTrans();
  const dots = React.useMemo(() => dotsOfNumbers(props.bytes), [props.bytes]);
  if (dots.length < 2) {
    return null;
  }
  return (
    <Chart
      title={trans.__('Host memory of rank %1', props.lead)}
      caption={newest(dots, size)}
      dots={dots}
      format={size}
      {...endsOf(props.live, trans)}
    />
  );
}

function endsOf(
  live: boolean,
  trans: TranslationBundle
): { first: string; last: string; where: (dot: Dot) => string } {
  const last = live ? trans.__('now') : trans.__('end');
  return { first: trans.__('start'), last, where: dot => trans.__('sample %1', dot.x + 1) };
}

/** The newest value. */
function newest(dots: Dot[], format: (value: number) => string): string {
  const known = dots.filter(dot => !Number.isNaN(dot.y));
  return known.length === 0 ? '' : format(known[known.length - 1].y);
}

/** What was logged once, or is text. */
function Values(props: { series: ValueSeries[] }): JSX.Element | null {
  const trans = useTrans();
  if (props.series.length === 0) {
    return null;
  }
  return (
    <Scroll label={trans.__('Other values')}>
      <table className="tpu-Table">
        <caption className="tpu-Hidden">{trans.__('Other values')}</caption>
        <thead>
          <tr>
            <th scope="col">{trans.__('value')}</th>
            <th scope="col">{trans.__('last')}</th>
            <th scope="col">{trans.__('at step')}</th>
          </tr>
        </thead>
        <tbody>
          {props.series.map(each => (
            <tr key={each.name}>
              <th scope="row">{each.name}</th>
              <td>
                {shortNumber(each.last)}
                {each.not_finite_at !== null && (
                  <span className="tpu-Warn">
                    {' '}
                    ! {trans.__('not a finite number at step %1', grouped(each.not_finite_at))}
                  </span>
                )}
              </td>
              <td>{grouped(each.step)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
