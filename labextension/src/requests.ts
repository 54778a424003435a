// The requests to the kernel that are not answered yet.

import { UUID } from '@lumino/coreutils';
import { isObject } from './checks';
import { FrontEndRequest } from './types';

/** What the answer is for: the kernel's own newest run, something that the person wants to see, or something that nobody
 * has clicked for. */
export type Purpose = 'latest' | 'shown' | 'unasked';

export interface Request {
  type: FrontEndRequest['type'];
  purpose: Purpose;
  at: number;
}

/** Milliseconds after which a request counts as lost, where the kernel answers at all. */
const LOST = 5_000;
/** Milliseconds after which it is forgotten, so that a person can ask again. */
export const FORGOTTEN = 30_000;

export class Requests {
  constructor(private readonly _now: () => number) {}

  static id(): string {
    return UUID.uuid4();
  }

  add(type: FrontEndRequest['type'], purpose: Purpose): string {
    const id = Requests.id();
    this._open.set(id, { type, purpose, at: this._now() });
    return id;
  }

  /** The request that this is the answer to; null: another front end's, or nobody's. An answer that cannot be read is one
   * as well. */
  answered(data: unknown): Request | null {
    const id = isObject(data) && typeof data.request === 'string' ? data.request : '';
    const found = this._open.get(id);
    this._open.delete(id);
    return found ?? null;
  }

  /** All of a type are over. A `hello`, for one, carries no request. */
  answeredType(type: FrontEndRequest['type']): void {
    for (const [id, request] of this._open) {
      if (request.type === type) {
        this._open.delete(id);
      }
    }
  }

  waitsFor(type: FrontEndRequest['type']): boolean {
    return [...this._open.values()].some(request => request.type === type);
  }

  /** Whether a whole record of the newest run is on its way. To a kernel that answers nothing before its cell has
   * ended, one question is enough. */
  waitsForLatest(deaf: boolean): boolean {
    for (const [id, request] of this._open) {
      if (request.purpose !== 'latest') {
        continue;
      }
      if (deaf || this._now() - request.at < LOST) {
        return true;
      }
      this._open.delete(id);
    }
    return false;
  }

  /** Forget what was not answered in time. `deaf`: a kernel that answers later has all its time before it. Returns whether
   * there was any. */
  forget(deaf: boolean): boolean {
    const before = this._open.size;
    for (const [id, request] of this._open) {
      if (deaf) {
        request.at = this._now();
      } else if (this._now() - request.at >= FORGOTTEN) {
        this._open.delete(id);
      }
    }
    return this._open.size < before;
  }

  get some(): boolean {
    return this._open.size > 0;
  }

  clear(): void {
    this._open.clear();
  }

  private readonly _open = new Map<string, Request>();
}
