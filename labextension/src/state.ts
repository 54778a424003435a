// The state of a kernel's runs.

import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';
import { Newest } from './newest';
import * as T from './types';

/** How it stands with the kernel. "absent": as far as is known it has not loaded tpu_magics. */
export type Connection = 'absent' | 'connected' | 'restarted';

const NO_FINDINGS: T.RuleFinding[] = [];

export class KernelState implements IDisposable {
  connection: Connection = 'absent';
  hello: T.HelloMessage | null = null;
  /** A run that the person has opened instead of the newest. */
  opened: T.RunRecord | null = null;
  /** Newest first; null: never asked for. */
  runs: T.RunLine[] | null = null;
  compared: T.ComparedMessage | null = null;
  /** What was checked last, and found; null: nothing was checked. */
  checked: T.FindingsMessage | null = null;
  /** The same where it was asked for here, and not by the kernel's own person or by another page. */
  askedFor: T.FindingsMessage | null = null;
  problem: T.ProblemMessage | null = null;
  /** The kernel's version where it is not the extension's; "" where it is. */
  mismatch = '';
  /** The run that is being stopped, or "". */
  stopping = '';

  /** Something is another than before. Objects are replaced, never changed: compare them by identity. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get host(): T.KernelHost | null {
    return this.hello?.host ?? null;
  }

  /** The run that this kernel makes, or made last; null: none that it has told of. */
  get latest(): T.RunRecord | null {
    return this.newest.record;
  }

  /** What the panel shows: the opened run, else the newest of this kernel. */
  get record(): T.RunRecord | null {
    return this.opened ?? this.latest;
  }

  /** Whether the newest run goes on. */
  get live(): boolean {
    return this.connection === 'connected' && this.newest.live;
  }

  /** The kernel was restarted while the newest run went on. */
  get lost(): boolean {
    return this.newest.lost;
  }

  get findings(): T.RuleFinding[] {
    return this.checked?.findings ?? NO_FINDINGS;
  }

  /** Back to the live run, or to the newest. */
  showLatest(): void {
    this.opened = null;
    this.tell();
  }

  closeCompared(): void {
    this.compared = null;
    this.tell();
  }

  closeProblem(): void {
    this.problem = null;
    this.tell();
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    if (!this._disposed) {
      this._disposed = true;
      Signal.clearData(this);
    }
  }

  protected tell(): void {
    if (!this._disposed) {
      this._changed.emit();
    }
  }

  /** What a kernel says of itself does not outlive it. The last record stays in sight. */
  protected forget(connection: Connection): void {
    this.connection = connection;
    this.hello = this.checked = this.askedFor = this.compared = this.problem = null;
    this.stopping = this.mismatch = '';
    this.newest.forgotten();
  }

  protected readonly newest = new Newest();
  private readonly _changed = new Signal<this, void>(this);
  private _disposed = false;
}
