// The way to a kernel.

import { beforeEach, expect, it } from 'vitest';
import { KernelComm } from '../comm';
import { KernelRuns } from '../model';
import { connection, FakeKernel, settled } from './kernel';
import { done, messages, page } from './sample';

let kernel: FakeKernel;
let comm: KernelComm;
let runs: KernelRuns;

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
  kernel.opens('a');
  kernel.says('comm_close', { comm_id: 'widget', data: {} });
  expect(runs.connection).toBe('connected');
  kernel.says('comm_close', { comm_id: 'a', data: {} });
  expect(runs.connection).toBe('absent');
  expect(comm.open).toBe(false);
  expect(kernel.comms.size).toBe(1);
});

it('notices a restart once, and finds the new comm', () => {
  kernel.opens('a').isDisposed = true;
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(1, page()) });
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
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(1, page()) });
  kernel.turns('restarting');
  const ended = done({ state: 'interrupted' });
  kernel.says('comm_msg', { comm_id: 'a', data: messages.here('run-1', 2) });
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(2, ended) });
  expect(runs.connection).toBe('restarted');
  expect(runs.lost).toBe(false);
  expect(runs.latest?.state).toBe('interrupted');
  kernel.session = 'second';
  kernel.says('status', { execution_state: 'idle' });
  kernel.opens('b');
  expect(runs.connection).toBe('connected');
});

it('notices that another page has restarted the kernel', () => {
  kernel.opens('a');
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(1, page()) });
  kernel.session = 'server';
  kernel.says('status', { execution_state: 'restarting' });
  expect(runs.connection).toBe('connected');
  kernel.session = 'second';
  kernel.says('status', { execution_state: 'starting' });
  expect(runs.connection).toBe('restarted');
  expect(runs.lost).toBe(true);
  kernel.session = 'third';
  kernel.says('status', { execution_state: 'starting' });
  expect(runs.lost).toBe(true);
});

it('takes the death of a kernel for the end', () => {
  kernel.opens('a');
  kernel.turns('dead');
  expect(runs.connection).toBe('restarted');
});

it('takes no other connection where JupyterLab keeps comms on this one', () => {
  const second = new FakeKernel();
  second.handleComms = false;
  comm.connect(connection(second), runs);
  kernel.opens('a');
  expect(runs.connection).toBe('connected');
});

it('lives on where a server says that it left outputs out', () => {
  kernel.opens('a');
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(1, page()) });
  kernel.says('stream', { name: 'stderr', text: 'IOPub data rate exceeded.' }, 'server');
  kernel.says('comm_msg', { comm_id: 'a', data: messages.update(1, { elapsed: '5 s' }) });
  kernel.says('comm_msg', { comm_id: 'a', data: messages.update(2, { elapsed: '6 s' }) });
  expect(runs.connection).toBe('connected');
  expect(runs.latest?.elapsed).toBe('6 s');
  expect(comm.open).toBe(true);
});

it('takes a kernel back that was not replaced after all', () => {
  kernel.opens('a');
  kernel.says('comm_msg', { comm_id: 'a', data: messages.run(1, page()) });
  kernel.says('status', { execution_state: 'busy' }, 'somebody');
  expect(runs.connection).toBe('restarted');
  expect(runs.lost).toBe(true);
  kernel.says('comm_msg', { comm_id: 'a', data: messages.here('run-1', 7) });
  expect(runs.connection).toBe('connected');
  expect(comm.open).toBe(true);
  kernel.says('comm_msg', { comm_id: 'a', data: messages.here('run-1', 7) });
  // Its comm is JupyterLab's still, and is given out no second time.
  expect(kernel.posted.map(each => each.data.type)).toEqual(['hello', 'open']);
});

it('sends where JupyterLab keeps the comms on another connection', async () => {
  const second = new FakeKernel();
  second.handleComms = false;
  second.known = ['a'];
  const other = new KernelComm();
  runs = new KernelRuns('kernel', other);
  other.connect(connection(second), runs);
  await settled();
  expect(other.open).toBe(true);
  expect(second.posted).toMatchObject([
    { comm: 'a', subshell: null, data: { protocol: 'tpu_magics', v: 1, type: 'hello' } }
  ]);
  second.says('comm_msg', { comm_id: 'a', data: messages.hello({ run: 'run-1', live: true }) });
  expect(second.posted.map(each => each.data.type)).toEqual(['hello', 'open']);
  second.says('comm_close', { comm_id: 'a', data: {} });
  expect(runs.connection).toBe('absent');
  second.opens('b');
  expect(runs.connection).toBe('connected');
  expect(second.posted.pop()).toMatchObject({ comm: 'b', data: { type: 'hello' } });
});

it('sends past the cell that runs there, and leaves no subshell behind', async () => {
  const second = new FakeKernel();
  Object.assign(second, { handleComms: false, supportsSubshells: true, known: ['a'] });
  const other = new KernelComm();
  other.connect(connection(second), runs);
  await settled();
  other.send({ type: 'runs' }, 'one');
  expect(second.posted.pop()).toMatchObject({ subshell: 'beside', data: { type: 'runs' } });
  other.dispose();
  expect(second.deleted).toEqual(['beside']);
});

it('goes on at once on another connection where its own closes', () => {
  kernel.opens('a');
  const second = new FakeKernel();
  second.handleComms = false;
  comm.connect(connection(second), runs, connection(kernel));
  expect(kernel.targets).toEqual({});
  expect(comm.open).toBe(true);
  expect(second.posted.map(each => each.comm)).toEqual(['a']);
  kernel.says('comm_close', { comm_id: 'a', data: {} });
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
