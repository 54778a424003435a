// A finished run in a notebook, also in one that was saved and has no kernel.
//
// It ranks before text/html, so that only one of the two is shown; where this extension is absent, the html is.

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';
import { Findings } from './panel/findings';
import { Around, Surroundings } from './panel/pieces';
import { Run } from './panel/run';
import { MIME_TYPE, Reached, RunRecord, Site, SITE_EVENT, Sought } from './types';
import { readRecord } from './validate';

export class RunOutput extends ReactWidget implements IRenderMime.IRenderer {
  constructor(translator: ITranslator) {
    super();
    this.addClass('tpu-Output');
    this._around = {
      trans: translator.load('tpu_magics'),
      onSite: site => this._show(site),
      folds: new Map()
    };
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
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
        <div className="tpu-Root">
          <Run
            record={this._record}
            findings={<Before record={this._record} trans={this._around.trans} />}
          />
        </div>
      </Around.Provider>
    );
  }

  private _show(site: Site): Reached {
    const detail: Sought = { site, reached: 'nothing' };
    this.node.dispatchEvent(new CustomEvent(SITE_EVENT, { bubbles: true, detail }));
    return detail.reached;
  }

  private readonly _around: Surroundings;
  private _record: RunRecord | string = '';
}

function Before(props: { record: RunRecord; trans: Surroundings['trans'] }): JSX.Element {
  const checked = props.trans.__('the code, found before the run');
  return (
    <Findings
      findings={props.record.view.findings}
      checked={checked}
      onCheck={null}
      checking={false}
    />
  );
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
  rank: 10,
  dataType: 'json'
};

export default extension;
