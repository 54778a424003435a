// The way to a kernel, with a connection that only keeps what JupyterLab's would do.

import { Kernel, KernelMessage } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import { beforeEach, expect, it } from 'vitest';
import { KernelComm } from '../comm';
import { KernelRuns } from '../model';
import { messages, record } from './sample';

class FakeComm {
  isDisposed = false;
  onClose: (message?: unknown) => void = () => undefined;
  sent: { type: string; request?: string; v: number; protocol: string }[] = [];

  constructor(readonly commId: string) {}

  send(data: FakeComm['sent'][0]): void {
    this.sent.push(data);
  }
}

class FakeKernel {
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
    const comm = new FakeComm(id);
    this.comms.set(id, comm);
    return comm;
  }

  async interrupt(): Promise<void> {
    this.interrupts += 1;
  }

  /** As the kernel opens one. */
  opens(id: string): FakeComm {
    const comm = this.createComm('tpu_magics', id);
    this.targets['tpu_magics']?.(comm, {});
    this.says('comm_open', { comm_id: id, target_name: 'tpu_magics', data: messages.hello() });
    return comm;
  }

  says(type: string, content: unknown): void {
    const header = { msg_type: type, session: this.session };
    const message = { header, channel: 'iopub', content };
    this.iopubMessage.emit(message as unknown as KernelMessage.IIOPubMessage);
  }

  turns(status: string): void {
    this.status = status;
    this.statusChanged.emit(status);
  }
}

let kernel: FakeKernel;
let comm: KernelComm;
let runs: KernelRuns;

const connection = (one: FakeKernel): Kernel.IKernelConnection =>
  one as unknown as Kernel.IKernelConnection;
const settled = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 0));

beforeEach(async () => {
  kernel = new FakeKernel();
  comm = new KernelComm();
  runs = new KernelRuns('kernel', comm);
  comm.connect(connection(kernel), runs);
  await settled();
});

it('leaves a kernel in peace that has no comm of ours', () => {
  expect(kernel.comms.size).toBe(0);
  expect(comm.open).toBe(false);
});

it('takes the comm that the kernel opens', () => {
  const opened = kernel.opens('a');
  expect(runs.connection).toBe('connected');
  expect(opened.sent[0]).toMatchObject({ protocol: 'tpu_magics', v: 1, type: 'hello' });
  expect(opened.sent[0].request).toMatch(/\w{8}-/);
});

it('finds the comm of a kernel that was there before the page', async () => {
  const other = new FakeKernel();
  other.known = ['b'];
  comm.connect(connection(other), runs);
  await settled();
  expect(other.comms.get('b')?.sent.map(each => each.type)).toEqual(['hello']);
});

it('learns the comm of a busy kernel from what passes', () => {
  kernel.says('comm_msg', { comm_id: 'c', data: messages.here('run-1', 7) });
  kernel.says('comm_msg', { comm_id: 'c', data: messages.here('run-1', 7) });
  expect(kernel.comms.get('c')?.sent.map(each => each.type)).toEqual(['hello', 'open']);
});

it('lets the comms of others pass', () => {
  kernel.says('comm_msg', { comm_id: 'widget', data: { method: 'update' } });
  kernel.says('comm_open', { comm_id: 'w', target_name: 'jupyter.widget', data: messages.hello() });
  kernel.says('status', { execution_state: 'busy' });
  expect(runs.connection).toBe('absent');
});

it('notices that the kernel takes tpu_magics out', () => {
  kernel.opens('a').onClose();
  expect(runs.connection).toBe('absent');
  expect(comm.open).toBe(false);
  expect(kernel.comms.size).toBe(1);
});

it('notices a restart once, and finds the new comm', () => {
  kernel.opens('a').isDisposed = true;
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(1, record()) });
  let told = 0;
  runs.changed.connect(() => (told += 1));
  kernel.turns('restarting');
  kernel.turns('restarting');
  kernel.turns('starting');
  expect(told).toBe(1);
  expect(runs.connection).toBe('restarted');
  kernel.session = 'second';
  kernel.opens('b');
  expect(runs.connection).toBe('connected');
});

it('takes the last words of a kernel that goes', () => {
  kernel.opens('a');
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(1, record()) });
  kernel.turns('restarting');
  const ended = record({ live: false, state: 'interrupted' });
  kernel.says('comm_msg', { comm_id: 'a', data: messages.here('run-1', 2) });
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(2, ended) });
  expect(runs.connection).toBe('restarted');
  expect(runs.lost).toBe(false);
  expect(runs.latest?.view.state).toBe('interrupted');
  kernel.session = 'second';
  kernel.says('status', { execution_state: 'idle' });
  kernel.opens('b');
  expect(runs.connection).toBe('connected');
});

it('notices that another page has restarted the kernel', () => {
  kernel.opens('a');
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(1, record()) });
  kernel.session = 'server';
  kernel.says('status', { execution_state: 'restarting' });
  expect(runs.connection).toBe('connected');
  kernel.session = 'second';
  kernel.says('status', { execution_state: 'starting' });
  expect(runs.connection).toBe('restarted');
  expect(runs.lost).toBe(true);
});

it('takes the death of a kernel for the end', () => {
  kernel.opens('a');
  kernel.turns('dead');
  expect(runs.connection).toBe('restarted');
});

it('stays with the connection that may send', () => {
  const second = new FakeKernel();
  second.handleComms = false;
  comm.connect(connection(second), runs);
  kernel.opens('a');
  expect(runs.connection).toBe('connected');
});

it('interrupts', () => {
  kernel.turns('busy');
  expect(comm.busy).toBe(true);
  comm.interrupt();
  expect(kernel.interrupts).toBe(1);
});

it('leaves the kernel when it is disposed', () => {
  comm.dispose();
  kernel.says('comm_msg', { comm_id: 'c', data: messages.here('run-1', 7) });
  expect(kernel.targets).toEqual({});
  expect(runs.connection).toBe('absent');
});
