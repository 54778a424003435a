// The newest run of a kernel, kept up to date by what the kernel sends.

import { merged } from './merge';
import { HelloMessage, HeartbeatMessage, RunMessage, RunRecord, UpdateMessage } from './types';

export class Newest {
  record: RunRecord | null = null;
  /** The kernel was restarted since: how the run ended is not known. */
  lost = false;

  get id(): string {
    return this.record?.view.id ?? '';
  }

  get live(): boolean {
    return this.record !== null && this.record.view.live && !this.lost;
  }

  /** The kernel has forgotten its runs. */
  forgotten(): void {
    this.lost ||= this.live;
    this._own = '';
    this._seq = -1;
  }

  // Each returns the run to ask for, or "" where nothing is missing.

  hello(message: HelloMessage): string {
    this._own = message.run ?? this._own;
    const stale = message.run !== this.id || (this.live && !message.live) || this._seq < 0;
    return message.run !== null && stale ? message.run : '';
  }

  here(message: HeartbeatMessage): string {
    this._own = message.run;
    return message.run !== this.id || message.seq > this._seq ? message.run : '';
  }

  update(message: UpdateMessage): string {
    this._own = message.run;
    if (this.record === null || message.run !== this.id) {
      return message.run;
    }
    if (message.seq <= this._seq) {
      return '';
    }
    if (message.after !== this._seq) {
      return message.run;
    }
    this.record = merged(this.record, message);
    this._seq = message.seq;
    return '';
  }

  /** Whether a whole record is that of this kernel's newest run; then it is taken. */
  run(message: RunMessage, asked: boolean): boolean {
    const id = message.record.view.id;
    if (message.request !== null && !asked && id !== this._own) {
      return false;
    }
    const ended = this.live && !message.record.view.live;
    if (id !== this.id || message.seq >= this._seq || ended) {
      this.record = message.record;
      this.lost = false;
      this._own = id;
      this._seq = message.seq;
    }
    return true;
  }

  private _own = '';
  private _seq = -1;
}
