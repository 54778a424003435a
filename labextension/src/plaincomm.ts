// The kernel's comm on a connection that JupyterLab keeps no comms on.
//
// Of several connections to one kernel JupyterLab lets only the first one have comms: that of a console, or of a
// notebook that is closed by now. A message to a comm needs no more than the comm's id.

import { CommsOverSubshells, Kernel, KernelMessage as Jupyter } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';

export class PlainComm implements IDisposable {
  constructor(
    private readonly _kernel: Kernel.IKernelConnection,
    readonly commId: string
  ) {
    if (_kernel.commsOverSubshells !== CommsOverSubshells.Disabled) {
      void this._passCells().catch(reason =>
        console.warn('tpu_magics: messages wait for the cell that runs', reason)
      );
    }
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  send(data: JSONObject): void {
    const message = Jupyter.createMessage<Jupyter.ICommMsgMsg<'shell'>>({
      msgType: 'comm_msg',
      channel: 'shell',
      username: this._kernel.username,
      session: this._kernel.clientId,
      subshellId: this._subshell ?? this._kernel.subshellId,
      content: { comm_id: this.commId, data }
    });
    this._kernel.sendShellMessage(message, false, true);
  }

  dispose(): void {
    if (!this._disposed) {
      this._disposed = true;
      this._endSubshell();
    }
  }

  /** The kernel is gone, and its subshells with it. */
  forget(): void {
    this._subshell = null;
    this._disposed = true;
  }

  /** A subshell, as JupyterLab's own comms have one: a kernel with subshells looks at nothing else while a cell runs. */
  private async _passCells(): Promise<void> {
    const kernel = this._kernel;
    await kernel.info;
    if (this._disposed || kernel.isDisposed || !kernel.supportsSubshells) {
      return;
    }
    const { content } = await kernel.requestCreateSubshell({}).done;
    this._subshell = content.subshell_id ?? null;
    if (this._disposed) {
      this._endSubshell();
    }
  }

  private _endSubshell(): void {
    const id = this._subshell;
    this._subshell = null;
    if (id !== null && !this._kernel.isDisposed && this._kernel.status !== 'dead') {
      this._kernel.requestDeleteSubshell({ subshell_id: id }, true);
    }
  }

  private _subshell: string | null = null;
  private _disposed = false;
}
