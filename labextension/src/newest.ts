// The newest run of a kernel, kept up to date by what the kernel sends.

import { Misfit, patched } from './patch';
import { HelloMessage, HeartbeatMessage, Page, RunMessage, UpdateMessage } from './types';
import { checkedPage } from './validate';

export class Newest {
  page: Page | null = null;
  /** The kernel was restarted since: how the run ended is not known. */
  lost = false;

  get id(): string {
    return this.page?.id ?? '';
  }

  get live(): boolean {
    return this.page !== null && this.page.live && !this.lost;
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
    if (this.page === null || message.run !== this.id) {
      return message.run;
    }
    if (message.seq <= this._seq) {
      return '';
    }
    const changed = message.after === this._seq ? afterPatch(this.page, message.patch) : null;
    if (changed === null) {
      return message.run;
    }
    this.page = changed;
    this._seq = message.seq;
    return '';
  }

  /** Whether a whole run is this kernel's newest; then it is taken. */
  run(message: RunMessage, asked: boolean): boolean {
    const { id, live } = message.record;
    if (message.request !== null && !asked && id !== this._own) {
      return false;
    }
    const ended = this.live && !live;
    if (id !== this.id || message.seq >= this._seq || ended) {
      this.page = message.record;
      this.lost = false;
      this._own = id;
      this._seq = message.seq;
    }
    return true;
  }

  private _own = '';
  private _seq = -1;
}

/** null: the patch was made for another page, or makes none. */
function afterPatch(page: Page, patch: unknown): Page | null {
  try {
    return checkedPage(patched(page, patch));
  } catch (error) {
    if (error instanceof Misfit) {
      return null;
    }
    throw error;
  }
}
