// The item in the status bar: where it runs, and how the training goes.

import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import { DisposableSet, IDisposable } from '@lumino/disposable';
import * as React from 'react';
import { grouped, percent, rate, toNumber } from './format';
import { KernelRuns } from './model';
import { useRuns } from './panel/body';
import { ITpuSessions } from './session';
import { Precision } from './types';

/** A piece of the item. `amber`: it needs action. */
export interface Word {
  text: string;
  amber?: boolean;
}

/** Put the item into the status bar. `open`: what a click does. */
export function addStatus(
  statusBar: IStatusBar,
  sessions: ITpuSessions,
  translator: ITranslator,
  open: () => void
): IDisposable {
  const item = new TpuStatus(sessions, translator, open);
  // With a priority it stays in a narrow window, where others are hidden.
  const shown = statusBar.registerStatusItem('tpu-magics:status', {
    item,
    align: 'left',
    rank: 4,
    priority: 1
  });
  return DisposableSet.from([shown, item]);
}

export class TpuStatus extends ReactWidget {
  constructor(
    private readonly _sessions: ITpuSessions,
    translator: ITranslator,
    private readonly _open: () => void
  ) {
    super();
    this._trans = translator.load('tpu_magics');
    this.addClass('tpu-StatusItem');
  }

  protected override render(): JSX.Element {
    return (
      <UseSignal signal={this._sessions.currentChanged}>
        {() => <Item runs={this._sessions.current} trans={this._trans} open={this._open} />}
      </UseSignal>
    );
  }

  private readonly _trans: TranslationBundle;
}

/** Nothing where the notebook's kernel has not loaded tpu_magics. */
function Item(props: {
  runs: KernelRuns | null;
  trans: TranslationBundle;
  open: () => void;
}): JSX.Element | null {
  const { runs, trans } = props;
  useRuns(runs);
  const words = runs === null ? [] : statusWords(runs, trans);
  if (words.length === 0) {
    return null;
  }
  const all = words.map(word => word.text).join(', ');
  return (
    <button
      type="button"
      className="tpu-Status"
      title={`${all}\n${trans.__('Click to open the panel')}`}
      aria-label={trans.__('TPU: %1. Open the panel', all)}
      onClick={props.open}
    >
      {words.map((word, at) => (
        <span key={at} className={word.amber ? 'tpu-Status-amber' : undefined}>
          {word.text}
        </span>
      ))}
    </button>
  );
}

/** Host and chips; while it trains state, step rate, compiles, recompiles and precision as they are. */
export function statusWords(runs: KernelRuns, trans: TranslationBundle): Word[] {
  if (runs.mismatch) {
    return [{ text: trans.__('! tpu_magics: other version'), amber: true }];
  }
  if (runs.connection !== 'connected') {
    return [];
  }
  const unknown = runs.hello === null ? 'TPU' : trans.__('TPU: run %tpu_init');
  const where = { text: runs.host?.title ?? unknown };
  const record = runs.latest;
  if (record === null) {
    return [where];
  }
  const state = { text: runs.lost ? trans.__('? unknown') : record.said.state };
  return runs.live ? [where, state, ...training(runs, trans)] : [where, state];
}

function training(runs: KernelRuns, trans: TranslationBundle): Word[] {
  const view = runs.latest?.view;
  if (view === undefined) {
    return [];
  }
  const speed = toNumber(view.steps_per_second);
  const { compiles, recompiles } = view;
  return [
    {
      text: Number.isFinite(speed)
        ? trans.__('%1 steps/s', rate(speed))
        : trans.__('no step rate yet')
    },
    {
      text:
        compiles === null
          ? trans.__('compiles n/a')
          : trans._n('%2 compile', '%2 compiles', compiles, grouped(compiles))
    },
    recompilesWord(recompiles, view.expected ?? 0, view.at_least, trans),
    precisionWord(view.precision, view.asked, trans)
  ];
}

function recompilesWord(
  recompiles: number | null,
  expected: number,
  atLeast: boolean,
  trans: TranslationBundle
): Word {
  if (recompiles === null) {
    return { text: trans.__('recompiles n/a') };
  }
  const counted = trans._n(
    '%2 recompile',
    '%2 recompiles',
    recompiles,
    `${grouped(recompiles)}${atLeast ? '+' : ''}`
  );
  return recompiles > expected ? { text: `! ${counted}`, amber: true } : { text: counted };
}

/** The share of matmuls in bf16, as in the compiled graph. */
function precisionWord(found: Precision | null, asked: string, trans: TranslationBundle): Word {
  const share = toNumber(found?.share ?? null);
  if (found === null || !Number.isFinite(share)) {
    const name = asked || 'bf16';
    return { text: trans.__('%1 n/a yet', name) };
  }
  const text = `bf16 ${percent(share)}`;
  return found.agrees ? { text } : { text: `! ${text}`, amber: true };
}
