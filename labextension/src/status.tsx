// The item in the status bar: how the training goes, in a few words.

import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import { DisposableSet, IDisposable } from '@lumino/disposable';
import * as React from 'react';
import { tpuIcon } from './icons';
import { KernelRuns } from './model';
import { useRuns } from './panel/follow';
import { ITpuSessions } from './session';
import { Figure, Page, Tone } from './types';

/** A piece of the item. */
export interface Word {
  text: string;
  tone: Tone;
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
  const host = runs?.host?.title ?? '';
  return (
    <button
      type="button"
      className="tpu-Status"
      title={[host, all, trans.__('Click to open the panel')].filter(Boolean).join('\n')}
      aria-label={trans.__('TPU: %1. Open the panel', all)}
      onClick={props.open}
    >
      <tpuIcon.react tag="span" className="tpu-Status-icon" />
      {words.map((word, at) => (
        <span key={at} className={`tpu-Status-word tpu-mod-${word.tone || 'plain'}`}>
          {word.text}
        </span>
      ))}
    </button>
  );
}

/** State, progress and what needs action; without a run, where the cells train. */
export function statusWords(runs: KernelRuns, trans: TranslationBundle): Word[] {
  if (runs.mismatch) {
    return [{ text: trans.__('tpu_magics: other version'), tone: 'warning' }];
  }
  if (runs.connection !== 'connected') {
    return [];
  }
  const { hello, latest: page } = runs;
  // A kernel that was restarted knows nothing of the run before.
  if (page === null || (hello !== null && hello.run !== page.id && !runs.live)) {
    const unknown = hello === null ? 'TPU' : trans.__('TPU: run %tpu_init');
    return [{ text: runs.host?.title ?? unknown, tone: '' }];
  }
  const stopping = runs.stopping !== '' && trans.__('stopping…');
  const state = runs.lost ? trans.__('? unknown') : `${page.symbol} ${stopping || page.state}`;
  const tone = page.tone === 'broken' && !runs.lost ? 'broken' : '';
  return [{ text: state, tone }, ...figures(page, runs.live, trans)];
}

/** What is amber always; how far it is and how fast while it goes on. */
function figures(page: Page, live: boolean, trans: TranslationBundle): Word[] {
  const { progress } = page;
  const [first] = page.figures;
  const share = progress === null ? 0 : Math.floor((100 * progress.done) / progress.total);
  const done =
    progress === null
      ? first && inWords(first)
      : { text: trans.__('%1 %', share), tone: '' as Tone };
  const warns = page.figures.filter(each => each.tone === 'warning' || each.tone === 'broken');
  return [...(live && done ? [done] : []), ...warns.map(inWords)];
}

function inWords({ label, value, tone }: Figure): Word {
  return { text: `${tone ? '! ' : ''}${label} ${value}`, tone };
}
