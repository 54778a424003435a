// The way to a kernel and back: its comm of the target `tpu_magics`.
//
// What lives here: finding the comm, taking what any of ours brings, sending, noticing a restart. What does not: what
// the messages say (model.ts).
//
// Everything is read off the kernel's iopub channel and not off one comm, because after a reload in the middle of a cell
// the page knows no comm, and a busy kernel cannot be asked for it: the first message that passes tells its id.

import { Kernel, KernelMessage as Jupyter } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { IChannel, KernelRuns } from './model';
import { PROTOCOL, TARGET, VERSION, Wish } from './types';

export class KernelComm implements IChannel, IDisposable {
  get open(): boolean {
    return this._comm !== null && !this._comm.isDisposed && this._kernel?.isDisposed === false;
  }

  get busy(): boolean {
    return this._kernel?.status === 'busy';
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** Use this connection; another one before it is left. Of several to one kernel only one may send on comms. */
  connect(kernel: Kernel.IKernelConnection, runs: KernelRuns): void {
    const better = this._kernel === null || this._kernel.isDisposed || kernel.handleComms;
    if (this._kernel === kernel || this._disposed || !better) {
      return;
    }
    this._release();
    this._kernel = kernel;
    this._runs = runs;
    kernel.registerCommTarget(TARGET, this._onOpened);
    kernel.iopubMessage.connect(this._onMessage, this);
    kernel.statusChanged.connect(this._onStatus, this);
    void this._find();
  }

  send(wish: Wish, request: string): void {
    if (!this.open || this._comm === null) {
      return;
    }
    const message = { protocol: PROTOCOL, v: VERSION, request, ...wish };
    try {
      this._comm.send(message as unknown as JSONObject);
    } catch (error) {
      console.warn('tpu_magics: a message could not be sent', error);
    }
  }

  interrupt(): void {
    this._kernel
      ?.interrupt()
      .catch(error => console.warn('tpu_magics: the kernel could not be interrupted', error));
  }

  dispose(): void {
    if (!this._disposed) {
      this._disposed = true;
      this._release();
    }
  }

  /** Ask the kernel which comms of ours it has. One that has not loaded tpu_magics has none, and is left in peace: an
   * attempt to open one would put a warning into its log. */
  private async _find(): Promise<void> {
    const kernel = this._kernel;
    try {
      const reply = await kernel?.requestCommInfo({ target_name: TARGET });
      if (kernel !== this._kernel || this.open || reply?.content.status !== 'ok') {
        return;
      }
      const [id] = Object.keys(reply.content.comms);
      if (id !== undefined) {
        this._adopt(id);
      }
    } catch {
      // The kernel went away, or knows no comms.
    }
  }

  private _onOpened = (comm: Kernel.IComm): void => {
    this._take(comm);
  };

  /** Use the kernel's end of a comm that this page did not see being opened. */
  private _adopt(id: string): void {
    if (!this._kernel?.handleComms || this._kernel.hasComm(id)) {
      return;
    }
    this._take(this._kernel.createComm(TARGET, id));
  }

  private _take(comm: Kernel.IComm): void {
    this._comm = comm;
    comm.onClose = () => {
      if (this._comm === comm) {
        this._comm = null;
        this._runs?.closed();
      }
    };
    this._runs?.connected();
  }

  private _onMessage(_: Kernel.IKernelConnection, message: Jupyter.IIOPubMessage): void {
    const late = this._isLate(message);
    if (Jupyter.isCommOpenMsg(message)) {
      if (message.content.target_name === TARGET) {
        this._runs?.receive(message.content.data, late);
      }
    } else if (Jupyter.isCommMsgMsg(message)) {
      const ours = this._runs?.receive(message.content.data, late) ?? false;
      if (ours && !late && !this.open) {
        this._adopt(message.content.comm_id);
      }
    }
  }

  /** Whether a kernel says this that has been replaced. That it was is seen here where another page restarted it: its
   * successor has another session. The server's own words on restarts have a session of the server. */
  private _isLate(message: Jupyter.IIOPubMessage): boolean {
    const { session } = message.header;
    if (Jupyter.isStatusMsg(message) && SERVER.includes(message.content.execution_state)) {
      return false;
    }
    if (session !== this._gone && session !== this._session) {
      if (this._session !== '') {
        this._restarted();
      }
      this._session = session;
    }
    return session === this._gone;
  }

  private _onStatus(_: Kernel.IKernelConnection, status: string): void {
    const over = status === 'restarting' || status === 'autorestarting' || status === 'dead';
    if (over && !this._over) {
      this._restarted();
    }
    this._over = over;
  }

  private _restarted(): void {
    this._comm = null;
    this._gone = this._session || this._gone;
    this._session = '';
    this._runs?.restarted();
  }

  private _release(): void {
    const kernel = this._kernel;
    this._kernel = this._comm = null;
    this._session = this._gone = '';
    this._over = false;
    if (kernel !== null && !kernel.isDisposed) {
      kernel.removeCommTarget(TARGET, this._onOpened);
      kernel.iopubMessage.disconnect(this._onMessage, this);
      kernel.statusChanged.disconnect(this._onStatus, this);
    }
  }

  private _kernel: Kernel.IKernelConnection | null = null;
  private _comm: Kernel.IComm | null = null;
  private _runs: KernelRuns | null = null;
  private _session = '';
  private _gone = '';
  private _over = false;
  private _disposed = false;
}

/** What a server says in a kernel's place. */
const SERVER: string[] = ['restarting', 'autorestarting', 'dead'];
