// The side panel as JupyterLab knows it.

import { ITranslator } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import * as React from 'react';
import { Reach } from '../reveal';
import { ITpuSessions } from '../session';
import { Page, Site } from '../types';
import { Actions, Body } from './body';
import { Around, Surroundings } from './pieces';

export interface TpuPanelOptions {
  sessions: ITpuSessions;
  translator: ITranslator;
  /** Show a line in the notebook in front. */
  onSite: (site: Site) => Reach;
  onLoadExtension?: () => void;
  onCheck?: () => void;
  onTrain?: () => void;
  /** In place of `KernelRuns.stop`. */
  onStop?: () => void;
  isShown?: (run: string) => boolean;
  onShowHere?: (page: Page) => void;
}

export class TpuPanel extends ReactWidget {
  constructor(options: TpuPanelOptions) {
    super();
    const trans = options.translator.load('tpu_magics');
    this.id = 'tpu-magics-panel';
    this.title.caption = trans.__('TPU runs');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('TPU runs'));
    this.addClass('tpu-Panel');
    this._sessions = options.sessions;
    this._around = { trans, onSite: options.onSite, folds: new Map() };
    this._actions = {
      loadExtension: options.onLoadExtension ?? null,
      check: options.onCheck ?? null,
      train: options.onTrain ?? null,
      stop: options.onStop ?? (() => this._sessions.current?.stop()),
      isShown: options.isShown ?? (() => true),
      showHere: options.onShowHere ?? null
    };
  }

  protected override onAfterAttach(message: Message): void {
    this._seen(this.isVisible);
    super.onAfterAttach(message);
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._seen(true);
  }

  protected override onBeforeHide(message: Message): void {
    super.onBeforeHide(message);
    this._seen(false);
  }

  /** A live run tells of itself many times a minute, also while another panel is in front of this one. */
  private _seen(visible: boolean): void {
    if (visible !== this._visible) {
      this._visible = visible;
      this.update();
    }
  }

  protected override render(): JSX.Element {
    return (
      <Around.Provider value={this._around}>
        <div className="tpu-Root">
          <UseSignal signal={this._sessions.currentChanged}>
            {() => (
              <Body
                visible={this._visible}
                runs={this._sessions.current}
                notebook={this._sessions.panel?.context.path ?? null}
                actions={this._actions}
              />
            )}
          </UseSignal>
        </div>
      </Around.Provider>
    );
  }

  private _visible = false;
  private readonly _sessions: ITpuSessions;
  private readonly _around: Surroundings;
  private readonly _actions: Actions;
}
