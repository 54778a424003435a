// A connection to a kernel, for tests: it only keeps what JupyterLab's would do.

import { Kernel, KernelMessage } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import { messages } from './sample';

interface Sent {
  type: string;
  request?: string;
  v: number;
  protocol: string;
}

export class FakeComm {
  isDisposed = false;
  sent: Sent[] = [];

  constructor(readonly commId: string) {}

  send(data: Sent): void {
    this.sent.push(data);
  }
}

export class FakeKernel {
  isDisposed = false;
  handleComms = true;
  status = 'idle';
  known: string[] = [];
  comms = new Map<string, FakeComm>();
  targets: { [name: string]: (comm: unknown, message: unknown) => void } = {};
  iopubMessage = new Signal<this, KernelMessage.IIOPubMessage>(this);
  statusChanged = new Signal<this, string>(this);
  interrupts = 0;
  session = 'first';
  /** What was sent past the comms: the message's subshell, its comm, what it says. */
  posted: { subshell: string | null | undefined; comm: string; data: Sent }[] = [];
  supportsSubshells = false;
  commsOverSubshells = 'perCommTarget';
  subshellId = null;
  deleted: string[] = [];
  username = 'somebody';
  clientId = 'page';

  constructor(readonly id = 'kernel') {}

  get info(): Promise<unknown> {
    return Promise.resolve({});
  }

  sendShellMessage(message: KernelMessage.ICommMsgMsg<'shell'>): void {
    const { comm_id: comm, data } = message.content;
    this.posted.push({ subshell: message.header.subshell_id, comm, data: data as never });
  }

  requestCreateSubshell(): unknown {
    return { done: Promise.resolve({ content: { status: 'ok', subshell_id: 'beside' } }) };
  }

  requestDeleteSubshell(content: { subshell_id: string }): void {
    this.deleted.push(content.subshell_id);
  }

  async requestCommInfo(): Promise<unknown> {
    const comms = Object.fromEntries(this.known.map(id => [id, { target_name: 'tpu_magics' }]));
    return { content: { status: 'ok', comms } };
  }

  registerCommTarget(name: string, callback: () => void): void {
    this.targets[name] = callback;
  }

  removeCommTarget(name: string): void {
    delete this.targets[name];
  }

  hasComm(id: string): boolean {
    return this.comms.has(id);
  }

  createComm(_target: string, id: string): FakeComm {
    if (!this.handleComms) {
      throw new Error('Comms are disabled on this kernel connection');
    }
    const comm = new FakeComm(id);
    this.comms.set(id, comm);
    return comm;
  }

  async interrupt(): Promise<void> {
    this.interrupts += 1;
  }

  /** As the kernel opens one. */
  opens(id: string): FakeComm {
    const comm = new FakeComm(id);
    if (this.handleComms) {
      this.comms.set(id, comm);
      this.targets['tpu_magics']?.(comm, {});
    }
    this.says('comm_open', { comm_id: id, target_name: 'tpu_magics', data: messages.hello() });
    return comm;
  }

  says(type: string, content: unknown, session = this.session): void {
    const header = { msg_type: type, session };
    const message = { header, channel: 'iopub', content };
    this.iopubMessage.emit(message as unknown as KernelMessage.IIOPubMessage);
  }

  turns(status: string): void {
    this.status = status;
    this.statusChanged.emit(status);
  }
}

export const connection = (one: FakeKernel): Kernel.IKernelConnection =>
  one as unknown as Kernel.IKernelConnection;

/** What was begun has come to its end. */
export const settled = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 0));
