// The kernels of this page, for outputs of cells: JupyterLab makes these without a way to the rest of the extension, of
// which this module is a part all the same.

import { ISignal, Signal } from '@lumino/signaling';
import { KernelRuns } from './model';

class Kernels {
  /** A kernel came or went, or one of them has told something. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  add(runs: KernelRuns): void {
    this._known.add(runs);
    runs.changed.connect(this._tell, this);
    this._tell();
  }

  remove(runs: KernelRuns): void {
    this._known.delete(runs);
    runs.changed.disconnect(this._tell, this);
    this._tell();
  }

  /** The kernel that makes a run, or made it last; null: no kernel of this page does. */
  of(run: string): KernelRuns | null {
    return [...this._known].find(runs => runs.has(run)) ?? null;
  }

  private _tell(): void {
    this._changed.emit();
  }

  private readonly _known = new Set<KernelRuns>();
  private readonly _changed = new Signal<this, void>(this);
}

export const kernels = new Kernels();
