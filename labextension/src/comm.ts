// The connection to a kernel: its comm of the target `tpu_magics`.
//
// Everything is read off the kernel's iopub channel and not off one comm, because after a reload in the middle of a
// cell the page knows no comm, and a busy kernel cannot be asked for it: the first message that passes tells its id.

import { Kernel, KernelMessage as Jupyter } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { IChannel, KernelRuns } from './model';
import { PlainComm } from './plaincomm';
import { PROTOCOL, TARGET, VERSION, FrontEndRequest } from './types';

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

  /** Use this connection to the kernel; another one before it is left. The one on which JupyterLab keeps comms is the
   * best: it closes comms of a target that it does not know. `closing`: a connection that goes. */
  connect(
    kernel: Kernel.IKernelConnection,
    runs: KernelRuns,
    closing: Kernel.IKernelConnection | null = null
  ): void {
    const { _kernel: before } = this;
    const free = before === null || before === closing || before.isDisposed;
    if (before === kernel || this._disposed || !(free || kernel.handleComms)) {
      return;
    }
    const known = this._comm?.commId;
    this._release();
    this._kernel = kernel;
    this._runs = runs;
    kernel.registerCommTarget(TARGET, this._onOpened);
    kernel.iopubMessage.connect(this._onMessage, this);
    kernel.statusChanged.connect(this._onStatus, this);
    if (known === undefined) {
      void this._find();
    } else {
      this._adopt(known);
    }
  }

  send(query: FrontEndRequest, request: string): void {
    if (!this.open || this._comm === null) {
      return;
    }
    const message = { protocol: PROTOCOL, v: VERSION, request, ...query };
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

  /** Use the kernel's end of a comm that JupyterLab has not given out here. */
  private _adopt(id: string): void {
    const kernel = this._kernel;
    if (kernel !== null && !kernel.isDisposed) {
      const own = kernel.handleComms && !kernel.hasComm(id);
      this._take(own ? kernel.createComm(TARGET, id) : new PlainComm(kernel, id));
    }
  }

  private _take(comm: Kernel.IComm | PlainComm): void {
    this._drop();
    this._comm = comm;
    this._runs?.connected();
  }

  /** JupyterLab's own stay in its list: they are not ours to dispose. */
  private _drop(): void {
    if (this._comm instanceof PlainComm) {
      this._comm.dispose();
    }
    this._comm = null;
  }

  private _onMessage(_: Kernel.IKernelConnection, message: Jupyter.IIOPubMessage): void {
    const late = this._isLate(message);
    if (Jupyter.isCommOpenMsg(message)) {
      const { comm_id: id, target_name: target, data } = message.content;
      if (target === TARGET) {
        if (!late && this._comm?.commId !== id) {
          this._adopt(id);
        }
        this._runs?.receive(data, late);
      }
    } else if (Jupyter.isCommCloseMsg(message)) {
      if (!late && message.content.comm_id === this._comm?.commId) {
        this._drop();
        this._runs?.closed();
      }
    } else if (Jupyter.isCommMsgMsg(message)) {
      const ours = this._runs?.receive(message.content.data, late) ?? false;
      if (ours && !late && !this.open) {
        this._adopt(message.content.comm_id);
      }
    }
  }

  /** Whether a kernel says this that has been replaced. That it was is seen here where another page restarted it: its
   * successor has another session. One that speaks again without a word of a restart was not replaced after all. */
  private _isLate(message: Jupyter.IIOPubMessage): boolean {
    const { session } = message.header;
    const lastWords = this._announced && session === this._gone;
    if (!lastWords && session !== this._session && isKernels(message)) {
      if (this._session !== '') {
        this._restarted(false);
      }
      this._session = session;
    }
    return session === this._gone && session !== this._session;
  }

  private _onStatus(_: Kernel.IKernelConnection, status: string): void {
    const over = status === 'restarting' || status === 'autorestarting' || status === 'dead';
    if (over && !this._over) {
      this._restarted(true);
    }
    this._over = over;
  }

  private _restarted(announced: boolean): void {
    if (announced && this._comm instanceof PlainComm) {
      this._comm.forget();
    }
    this._drop();
    this._announced = announced;
    this._gone = this._session || this._gone;
    this._session = '';
    this._runs?.restarted();
  }

  private _release(): void {
    const kernel = this._kernel;
    this._drop();
    this._kernel = null;
    this._over = false;
    if (kernel !== null && !kernel.isDisposed) {
      kernel.removeCommTarget(TARGET, this._onOpened);
      kernel.iopubMessage.disconnect(this._onMessage, this);
      kernel.statusChanged.disconnect(this._onStatus, this);
    }
  }

  private _kernel: Kernel.IKernelConnection | null = null;
  private _comm: Kernel.IComm | PlainComm | null = null;
  private _runs: KernelRuns | null = null;
  private _session = '';
  private _gone = '';
  private _over = false;
  private _announced = false;
  private _disposed = false;
}

/** Whether only a kernel says this. A server speaks in its place, with a session of its own: of restarts, and that it
 * left outputs out because there were too many. */
function isKernels(message: Jupyter.IIOPubMessage): boolean {
  return Jupyter.isStatusMsg(message)
    ? STATES.includes(message.content.execution_state)
    : KERNELS.includes(message.header.msg_type);
}

const STATES: string[] = ['starting', 'busy', 'idle'];
const KERNELS: string[] = ['comm_open', 'comm_msg', 'comm_close', 'execute_input'];
