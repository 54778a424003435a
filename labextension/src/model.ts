// The runs of one kernel, from its messages: the model of every part of the front end.

import { FORGOTTEN, Purpose, Request, Requests } from './requests';
import { Connection, KernelState } from './state';
import * as T from './types';
import { read } from './validate';

/** The way to the kernel; comm.ts has the real one. */
export interface IChannel {
  /** Whether there is a way now. */
  readonly open: boolean;
  /** Whether the kernel is running a cell. */
  readonly busy: boolean;
  send(query: T.FrontEndRequest, request: string): void;
  interrupt(): void;
}

/** Milliseconds: a front end tells its rate again, so that those of closed ones can be forgotten. */
const TELL_RATE = 20_000;

export class KernelRuns extends KernelState {
  constructor(
    readonly kernelId: string,
    private readonly _channel: IChannel,
    private readonly _now: () => number = () => Date.now()
  ) {
    super();
    this._requests = new Requests(_now);
  }

  /** A click waits until the cell has ended, because this kernel answers none before. */
  get deaf(): boolean {
    return (this._channel.busy || this.trains) && this.hello?.answers !== true;
  }

  /** Whether a cell holds the kernel with a live run; the status may be that of a message answered meanwhile. */
  get trains(): boolean {
    return this.live && this.latest?.background === false;
  }

  /** Whether this kernel makes this run, or made it last. */
  has(run: string): boolean {
    return run === this.newest.id;
  }

  /** Whether its answer has not come yet. */
  waitsFor(type: T.FrontEndRequest['type']): boolean {
    return this._requests.waitsFor(type);
  }

  // -- what the person wants -----------------------------------------------------------------------------------------

  open(id: string): void {
    if (id === this.newest.id) {
      return this.showLatest();
    }
    this._ask({ type: 'open', run: id });
  }

  /** `unasked`: nobody has clicked for it. */
  refreshRuns(unasked = false): void {
    this._ask({ type: 'runs' }, unasked ? 'unasked' : 'shown');
  }

  compare(first: string, second: string): void {
    this._ask({ type: 'compare', runs: [first, second] });
  }

  /** Stop the live run. A kernel that answers no click while it is busy is interrupted, which reaches it always. */
  stop(): void {
    if (!this.live || this.latest === null) {
      return;
    }
    this.setStopping(this.newest.id);
    this.tell();
    if (this.deaf && this.trains) {
      this.interrupt();
    } else {
      this._ask({ type: 'stop', run: this.newest.id });
    }
  }

  /** End the running cell: this reaches a kernel always. */
  interrupt(): void {
    this._channel.interrupt();
  }

  /** The run was stopped in another way: an answer to `stop` would be that there is nothing to stop. */
  forgetStop(): void {
    this._requests.answeredType('stop');
  }

  /** Check the code cells of a whole notebook, in their order. */
  check(cells: T.CheckedCell[]): void {
    this._ask({ type: 'check', cells });
  }

  /** Seconds between two updates. */
  setRate(seconds: number): void {
    this._rate = Math.min(10, Math.max(0.1, seconds));
    this._tellRate();
  }

  // -- what the kernel tells -----------------------------------------------------------------------------------------

  /** A message of any comm; `late`: of a kernel that has been replaced since. Returns whether it was ours. */
  receive(data: unknown, late = false): boolean {
    const arrived = read(data);
    if (arrived.kind === 'foreign') {
      return false;
    }
    const request = this._requests.answered(data);
    if (arrived.kind === 'faulty') {
      console.warn(`tpu_magics: a message was left out: ${arrived.text}`);
    } else if (arrived.kind === 'other-version') {
      this.mismatch = arrived.found;
    } else if (late) {
      this._lastWords(arrived.message);
    } else {
      this.connection = 'connected';
      this._dispatch(arrived.message, request);
    }
    this.tell();
    return true;
  }

  /** How its run ended, which a kernel tells while it goes. */
  private _lastWords(message: T.KernelMessage): void {
    if (message.type === 'run' && message.record.id === this.latest?.id) {
      this.newest.run(message, true);
    }
  }

  /** There is a way to the kernel now, or a new one: ask it who it is. */
  connected(): void {
    this._requests.clear();
    this._ask({ type: 'hello' }, 'unasked');
    this._tellRate();
  }

  /** The kernel was started anew: it knows nothing, and what it ran is over. */
  restarted(): void {
    this._gone(this.connection === 'absent' ? 'absent' : 'restarted');
  }

  /** The kernel has closed the comm: tpu_magics was taken out of it. */
  closed(): void {
    this._gone('absent');
  }

  private _gone(connection: Connection): void {
    this.forget(connection);
    this._requests.clear();
    this.tell();
  }

  private _dispatch(message: T.KernelMessage, request: Request | null): void {
    switch (message.type) {
      case 'hello':
        this._requests.answeredType('hello');
        this.hello = message;
        this.mismatch = '';
        return this._askFor(this.newest.hello(message));
      case 'here':
        this._onHere();
        return this._askFor(this.newest.here(message));
      case 'update':
        return this._askFor(this.newest.update(message));
      case 'run':
        return this._onRun(message, request?.purpose ?? null);
      case 'runs':
        this.runs = message.runs;
        return;
      case 'findings':
        return this._onFindings(message, request !== null);
      case 'profile':
        this.profiled = message;
        return;
      case 'stopping':
        this._requests.answeredType('stop');
        return this.setStopping(message.run);
      case 'compared':
        this.compared = request === null ? this.compared : message;
        return;
      case 'problem':
        this.problem = request === null ? this.problem : message;
        if (request?.type === 'stop') {
          this.setStopping('');
        }
    }
  }

  /** The beat of a live run, by which a page that was loaded in the middle learns of it. */
  private _onHere(): void {
    if (this.hello === null && !this.waitsFor('hello')) {
      this._ask({ type: 'hello' }, 'unasked');
    }
    if (this._now() - this._rateTold > TELL_RATE && !this.deaf) {
      this._tellRate();
    }
  }

  private _onFindings(message: T.FindingsMessage, asked: boolean): void {
    this.checked = message;
    if (asked) {
      this.askedFor = message;
      this.opened = null;
    }
  }

  /** `purpose`: what this front end asked it for; null: the kernel's own word, or another front end's answer. */
  private _onRun(message: T.RunMessage, purpose: Purpose | null): void {
    if (this.newest.run(message, purpose === 'latest')) {
      const here = purpose === 'shown' || this.opened?.id === message.record.id;
      this.opened = here ? null : this.opened;
    } else if (purpose !== null) {
      this.opened = message.record;
    }
  }

  // -- asking --------------------------------------------------------------------------------------------------------

  /** A whole record of this kernel's run; not again while one is on its way. */
  private _askFor(run: string): void {
    if (run !== '' && !this._requests.waitsForLatest(this.deaf)) {
      this._ask({ type: 'open', run }, 'latest');
    }
  }

  private _tellRate(): void {
    if (this._rate !== null && this._channel.open) {
      this._rateTold = this._now();
      this._channel.send({ type: 'rate', seconds: this._rate }, Requests.id());
    }
  }

  private _ask(query: T.FrontEndRequest, purpose: Purpose = 'shown'): void {
    if (this._channel.open) {
      this.problem = purpose === 'shown' ? null : this.problem;
      this._channel.send(query, this._requests.add(query.type, purpose));
      this._watch();
      this.tell();
    }
  }

  /** No button may wait for ever for an answer that does not come. */
  private _watch(): void {
    this._watching ??= setTimeout(() => {
      this._watching = null;
      if (this._requests.forget(this.deaf)) {
        this.tell();
      }
      if (this._requests.some && !this.isDisposed) {
        this._watch();
      }
    }, FORGOTTEN);
  }

  private readonly _requests: Requests;
  private _watching: ReturnType<typeof setTimeout> | null = null;
  private _rate: number | null = null;
  private _rateTold = 0;
}
