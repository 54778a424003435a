// The state of a kernel's runs.

import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';
import { Newest } from './newest';
import * as T from './types';

/** How it stands with the kernel. "absent": as far as is known it has not loaded tpu_magics. */
export type Connection = 'absent' | 'connected' | 'restarted';

/** Milliseconds. */
const STOPS_WITHIN = 20_000;
const NO_FINDINGS: T.Problem[] = [];

export class KernelState implements IDisposable {
  connection: Connection = 'absent';
  hello: T.HelloMessage | null = null;
  /** A run that the person has opened instead of the newest. */
  opened: T.Page | null = null;
  /** Newest first; null: never asked for. */
  runs: T.RunLine[] | null = null;
  compared: T.ComparedMessage | null = null;
  /** What was checked last, and found; null: nothing was checked. */
  checked: T.FindingsMessage | null = null;
  /** The lines of the newest profile; null: there is none. */
  profiled: T.ProfileMessage | null = null;
  /** The same where it was asked for here, and not by the kernel's own person or by another page. */
  askedFor: T.FindingsMessage | null = null;
  problem: T.ProblemMessage | null = null;
  /** The kernel's version where it is not the extension's; "" where it is. */
  mismatch = '';

  /** Something is another than before. Objects are replaced, never changed: compare them by identity. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Another number after each change. */
  get version(): number {
    return this._version;
  }

  get host(): T.KernelHost | null {
    return this.hello?.host ?? null;
  }

  /** The run that this kernel makes, or made last; null: none that it has told of. */
  get latest(): T.Page | null {
    return this.newest.page;
  }

  /** What the panel shows: the opened run, else the newest of this kernel. */
  get page(): T.Page | null {
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

  /** The run that is being stopped, from the click on, or "". */
  get stopping(): string {
    return this.live && this._stopping === this.newest.id ? this._stopping : '';
  }

  get findings(): T.Problem[] {
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
      this._version += 1;
      this._changed.emit();
    }
  }

  /** What a kernel says of itself does not outlive it. The last record stays in sight. */
  protected forget(connection: Connection): void {
    this.connection = connection;
    this.hello = this.checked = this.askedFor = this.compared = this.problem = null;
    this.profiled = null;
    this._stopping = this.mismatch = '';
    this.newest.forgotten();
  }

  /** From now on, or ("") not any more. */
  protected setStopping(run: string): void {
    clearTimeout(this._untilStopped);
    this._stopping = run;
    if (run !== '') {
      // Who has waited that long may press again.
      this._untilStopped = setTimeout(() => {
        this._stopping = '';
        this.tell();
      }, STOPS_WITHIN);
    }
  }

  protected readonly newest = new Newest();
  private _stopping = '';
  private _untilStopped: ReturnType<typeof setTimeout> | undefined;
  private readonly _changed = new Signal<this, void>(this);
  private _version = 0;
  private _disposed = false;
}
