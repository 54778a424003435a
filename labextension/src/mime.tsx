// A run in a notebook: what the kernel tells of it while it goes on, and what was saved.
//
// It ranks before the widgets of a live run and before text/html, so that only one of them is shown; where this extension
// is absent, the others are.

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { JSONObject } from '@lumino/coreutils';
import * as React from 'react';
import { useKernelOf } from './panel/follow';
import { Around, Surroundings } from './panel/pieces';
import { Run } from './panel/run';
import { Reach, SITE_EVENT, SiteRequest } from './reveal';
import { stopRun } from './stopping';
import { MIME_TYPE, Page, Site } from './types';
import { readRecord, RunRecord } from './validate';

export class RunOutput extends ReactWidget implements IRenderMime.IRenderer {
  /** `foundWithin`: milliseconds until a saved run that goes on counts as lost. */
  constructor(
    translator: ITranslator,
    private readonly _foundWithin = FOUND_WITHIN
  ) {
    super();
    this.addClass('tpu-Output');
    this._around = {
      trans: translator.load('tpu_magics'),
      onSite: site => this._show(site),
      folds: new Map()
    };
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this._model = model;
    this._record = readRecord(model.data[MIME_TYPE], this._around.trans);
    this.update();
    await this.renderPromise;
  }

  protected override render(): JSX.Element {
    if (typeof this._record === 'string') {
      return <p className="tpu-Unreadable">{this._record}</p>;
    }
    return (
      <Around.Provider value={this._around}>
        <div className="tpu-Root" onFocus={keepKeys}>
          <Output
            record={this._record}
            foundWithin={this._foundWithin}
            onEnd={page => this._keep(page)}
          />
        </div>
      </Around.Provider>
    );
  }

  /** The kernel cannot reach an output of before a reload: what is saved would go on for ever. */
  private _keep(page: Page): void {
    const words = `${page.name}: ${page.symbol} ${page.state}. %tpu_panel ${page.id} shows the run.`;
    const data = { [MIME_TYPE]: page as unknown as JSONObject, 'text/plain': words };
    this._model?.setData({ data });
  }

  private _show(site: Site): Reach {
    const detail: SiteRequest = { site, reach: 'nothing' };
    this.node.dispatchEvent(new CustomEvent(SITE_EVENT, { bubbles: true, detail }));
    return detail.reach;
  }

  private readonly _around: Surroundings;
  private _model: IRenderMime.IMimeModel | null = null;
  private _record: RunRecord | string = '';
}

/** Its kernel may be found meanwhile. */
const FOUND_WITHIN = 4_000;

/** Milliseconds that the kernel has to show how the run ended. */
const SHOWN_WITHIN = 3_000;

function Output(props: {
  record: RunRecord;
  foundWithin: number;
  onEnd: (page: Page) => void;
}): JSX.Element {
  const { page, faults } = props.record;
  const runs = useKernelOf(page);
  const alone = page.live && runs === null;
  const [waited, setWaited] = React.useState(false);
  React.useEffect(() => {
    if (!alone) {
      return;
    }
    const timer = setTimeout(() => setWaited(true), props.foundWithin);
    return () => {
      clearTimeout(timer);
      setWaited(false);
    };
  }, [alone, props.foundWithin]);
  const { onEnd } = props;
  const ended = page.live && runs?.latest?.live === false ? runs.latest : null;
  React.useEffect(() => {
    const timer = ended === null ? undefined : setTimeout(() => onEnd(ended), SHOWN_WITHIN);
    return () => clearTimeout(timer);
  }, [ended]);
  const live = runs?.live === true;
  return (
    <Run
      page={runs?.latest ?? page}
      faults={runs === null ? faults : undefined}
      lost={runs?.lost ?? (alone && waited)}
      stopping={live && runs.stopping !== ''}
      onStop={live ? () => void stopRun(runs) : null}
    />
  );
}

/** Keys of a button that has the focus by the keyboard are its own: the notebook would take them for the cell's. */
function keepKeys(event: React.FocusEvent<HTMLElement>): void {
  const byKeyboard = event.target.matches(':focus-visible');
  event.currentTarget.toggleAttribute('data-lm-suppress-shortcuts', byKeyboard);
}

const factory: IRenderMime.IRendererFactory = {
  safe: true,
  mimeTypes: [MIME_TYPE],
  createRenderer: options => new RunOutput(options.translator ?? nullTranslator)
};

const extension: IRenderMime.IExtension = {
  id: 'tpu-magics:run',
  description: 'Shows a run of tpu_magics in a notebook.',
  rendererFactory: factory,
  rank: -20, // widgets have -10
  dataType: 'json'
};

export default extension;
