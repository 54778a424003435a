// @vitest-environment jsdom The output of a cell: a saved run, and one that goes on, which its kernel tells of.

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { nullTranslator } from '@jupyterlab/translation';
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { act } from 'react';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { kernels } from '../kernels';
import { RunOutput } from '../mime';
import { KernelRuns } from '../model';
import { SITE_EVENT, SiteRequest } from '../reveal';
import { MIME_TYPE } from '../types';
import { done, FakeChannel, messages, page, SITE } from './sample';

(globalThis as Record<string, unknown>).IS_REACT_ACT_ENVIRONMENT = true;

const SOON = 200;
let output: RunOutput;
let channel: FakeChannel;
let runs: KernelRuns;

const model = (data: unknown): IRenderMime.IMimeModel =>
  ({ data: { [MIME_TYPE]: data } }) as unknown as IRenderMime.IMimeModel;
const shows = (data: unknown): Promise<void> =>
  act(async () => {
    void output.renderModel(model(data));
    MessageLoop.flush();
    await output.renderPromise;
  });
const take = (...all: unknown[]): Promise<void> =>
  act(async () => all.forEach(each => runs.receive(each)));
const text = (): string => output.node.textContent ?? '';
const button = (words: string): HTMLButtonElement | undefined =>
  [...output.node.querySelectorAll('button')].find(each => each.textContent?.includes(words));

beforeEach(async () => {
  channel = new FakeChannel();
  runs = new KernelRuns('kernel', channel);
  output = new RunOutput(nullTranslator, SOON);
  await act(async () => {
    Widget.attach(output, document.body);
    MessageLoop.flush();
    await output.renderPromise;
  });
});

afterEach(async () => {
  await act(async () => {
    kernels.remove(runs);
    output.dispose();
  });
});

it('shows a saved run, whatever kernels say', async () => {
  kernels.add(runs);
  await shows(done({ elapsed: '54 s' }));
  await take(messages.run(1, page({ elapsed: '99 s' })));
  expect(text()).toContain('54 s');
  expect(button('Stop')).toBeUndefined();
});

it('follows the kernel that makes the run, and is the same when it is over', async () => {
  kernels.add(runs);
  await shows(page({ elapsed: '1 s' }));
  await take(messages.run(1, page({ elapsed: '2 s' })));
  await take(messages.update(1, { elapsed: '3 s' }));
  expect(text()).toContain('3 s');
  const article = output.node.querySelector('article');
  await take(messages.run(3, done({ elapsed: '4 s' })));
  expect(text()).toContain('✓ done');
  await shows(done({ elapsed: '4 s' }));
  expect(output.node.querySelector('article')).toBe(article);
  await take(messages.run(1, page({ id: 'run-2', elapsed: '9 s' })));
  expect(text()).toContain('4 s');
});

it('is there when its kernel is found later, also after a reload', async () => {
  await shows(page({ elapsed: '1 s' }));
  await take(messages.run(8, page({ elapsed: '60 s' })));
  await act(async () => kernels.add(runs));
  expect(text()).toContain('60 s');
});

it('is saved as it ended where its kernel could not reach it any more', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  kernels.add(runs);
  act(() => void runs.receive(messages.run(1, page())));
  const setData = vi.fn();
  void output.renderModel({ ...model(page()), setData } as unknown as IRenderMime.IMimeModel);
  act(() => MessageLoop.flush());
  act(() => void runs.receive(messages.run(2, done())));
  expect(setData).not.toHaveBeenCalled();
  act(() => void vi.advanceTimersByTime(4_000));
  vi.useRealTimers();
  const [{ data }] = setData.mock.calls[0];
  expect(data[MIME_TYPE]).toMatchObject({ id: 'run-1', live: false });
  expect(data['text/plain']).toBe('text-classifier: ✓ done. %tpu_panel run-1 shows the run.');
});

it('has a button that stops the run, and says so at once', async () => {
  kernels.add(runs);
  await shows(page());
  await take(messages.hello({ run: 'run-1', live: true }), messages.run(1, page()));
  await act(async () => button('Stop')?.click());
  expect(channel.last('stop').query).toEqual({ type: 'stop', run: 'run-1' });
  expect(button('Stopping…')?.disabled).toBe(true);
});

it('says after a while that no kernel tells of it any more', async () => {
  await shows(page());
  expect(text()).not.toContain('no longer reports');
  await act(() => new Promise(resolve => setTimeout(resolve, 2 * SOON)));
  expect(text()).toContain('no longer reports');
  expect(text()).toContain('? unknown');
});

it('says of a kernel that was restarted the same at once', async () => {
  kernels.add(runs);
  await shows(page());
  await take(messages.run(1, page()));
  await act(async () => runs.restarted());
  expect(text()).toContain('no longer reports');
});

it('shows of a torn record what can be shown', async () => {
  await shows({ ...done(), figures: 'none' });
  expect(text()).toContain('text-classifier');
  expect(text()).toContain('Not all of this run could be read: figures is not a list.');
  await shows({ v: 9 });
  expect(text()).toContain('another version of tpu_magics');
});

it('asks its notebook for a line', async () => {
  const heard = vi.fn((event: Event) => {
    (event as CustomEvent<SiteRequest>).detail.reach = 'cell';
  });
  document.addEventListener(SITE_EVENT, heard);
  await shows(done());
  await act(async () => output.node.querySelector<HTMLElement>('.tpu-Problem .tpu-Link')?.click());
  expect((heard.mock.calls[0][0] as CustomEvent<SiteRequest>).detail.site).toEqual(SITE);
  expect(text()).toContain('its cell was edited');
  document.removeEventListener(SITE_EVENT, heard);
});
