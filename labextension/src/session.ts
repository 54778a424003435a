// The current kernel: one `KernelRuns` for each kernel of a notebook.

import { ISessionContext } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Kernel } from '@jupyterlab/services';
import { Token } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';
import { KernelComm } from './comm';
import { kernels } from './kernels';
import { KernelRuns } from './model';

export interface ITpuSessions {
  /** Of the notebook that is in front; null: no notebook, or no kernel. */
  readonly current: KernelRuns | null;
  /** Another notebook came to the front, or its kernel or its path is another one. */
  readonly currentChanged: ISignal<ITpuSessions, KernelRuns | null>;
  /** The notebook that is in front. */
  readonly panel: NotebookPanel | null;
  forPanel(panel: NotebookPanel): KernelRuns | null;
  /** Tell every kernel, also those to come, how many seconds may be between two updates. */
  setRate(seconds: number): void;
}

export const ITpuSessions = new Token<ITpuSessions>(
  'tpu-magics:ITpuSessions',
  'The runs of each kernel.'
);

/** A kernel, its comm, and the notebooks that have it. */
interface Known {
  runs: KernelRuns;
  comm: KernelComm;
  panels: Set<NotebookPanel>;
}

export class Sessions implements ITpuSessions, IDisposable {
  constructor(private readonly _tracker: INotebookTracker) {
    _tracker.forEach(panel => this._follow(panel));
    _tracker.widgetAdded.connect(this._onAdded, this);
    _tracker.currentChanged.connect(this._refresh, this);
    this._refresh();
  }

  get current(): KernelRuns | null {
    return this._current;
  }

  get currentChanged(): ISignal<this, KernelRuns | null> {
    return this._currentChanged;
  }

  get panel(): NotebookPanel | null {
    return this._tracker.currentWidget;
  }

  forPanel(panel: NotebookPanel): KernelRuns | null {
    const kernel = panel.sessionContext.session?.kernel;
    return kernel ? (this._known.get(kernel.id)?.runs ?? null) : null;
  }

  setRate(seconds: number): void {
    this._rate = seconds;
    for (const { runs } of this._known.values()) {
      runs.setRate(seconds);
    }
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    for (const known of this._known.values()) {
      forget(known);
    }
    this._known.clear();
    Signal.clearData(this);
  }

  private _onAdded(_: INotebookTracker, panel: NotebookPanel): void {
    this._follow(panel);
  }

  private _follow(panel: NotebookPanel): void {
    const context = panel.sessionContext;
    let before: Kernel.IKernelConnection | null = null;
    const settle = (kernel: Kernel.IKernelConnection | null) => {
      if (before !== null && before.id !== kernel?.id) {
        this._leave(before, panel);
      }
      before = kernel;
      if (kernel !== null) {
        this._join(kernel, panel);
      }
      this._refresh();
    };
    panel.context.pathChanged.connect(() => this._onPath(panel), this);
    context.kernelChanged.connect((_: ISessionContext, { newValue }) => settle(newValue), this);
    panel.disposed.connect(() => settle(null), this);
    settle(context.session?.kernel ?? null);
  }

  private _join(kernel: Kernel.IKernelConnection, panel: NotebookPanel): void {
    let known = this._known.get(kernel.id);
    if (known === undefined) {
      const comm = new KernelComm();
      known = { comm, runs: new KernelRuns(kernel.id, comm), panels: new Set() };
      this._known.set(kernel.id, known);
      kernels.add(known.runs);
      if (this._rate !== null) {
        known.runs.setRate(this._rate);
      }
    }
    known.panels.add(panel);
    known.comm.connect(kernel, known.runs);
  }

  private _leave(kernel: Kernel.IKernelConnection, panel: NotebookPanel): void {
    const known = this._known.get(kernel.id);
    if (known === undefined) {
      return;
    }
    known.panels.delete(panel);
    const other = [...known.panels][0]?.sessionContext.session?.kernel;
    if (other && other.id === kernel.id) {
      known.comm.connect(other, known.runs, kernel);
      return;
    }
    this._known.delete(kernel.id);
    forget(known);
  }

  private _onPath(panel: NotebookPanel): void {
    if (panel === this.panel) {
      this._currentChanged.emit(this._current);
    }
  }

  private _refresh(): void {
    const panel = this.panel;
    const current = panel === null ? null : this.forPanel(panel);
    if (current !== this._current || panel !== this._shown) {
      this._current = current;
      this._shown = panel;
      this._currentChanged.emit(current);
    }
  }

  private readonly _known = new Map<string, Known>();
  private readonly _currentChanged = new Signal<this, KernelRuns | null>(this);
  private _current: KernelRuns | null = null;
  private _rate: number | null = null;
  private _shown: NotebookPanel | null = null;
  private _disposed = false;
}

function forget({ comm, runs }: Known): void {
  comm.dispose();
  kernels.remove(runs);
  runs.dispose();
}
