// What a kernel's runs become by the messages that arrive.

import { beforeEach, describe, expect, it, vi } from 'vitest';
import { KernelRuns } from '../model';
import { done, FakeChannel, item, messages, page } from './sample';

let channel: FakeChannel;
let runs: KernelRuns;
let now: number;
let told: number;

beforeEach(() => {
  channel = new FakeChannel();
  now = 0;
  told = 0;
  runs = new KernelRuns('kernel', channel, () => now);
  runs.changed.connect(() => {
    told += 1;
  });
});

/** Connected, with a live run of `seq`. */
function training(seq = 5): void {
  runs.connected();
  runs.receive(messages.hello({ run: 'run-1', live: true }));
  const { request } = channel.last('open');
  runs.receive(messages.run(seq, page(), request));
}

describe('the start', () => {
  it('knows nothing of a kernel', () => {
    expect(runs.connection).toBe('absent');
    expect(runs.page).toBeNull();
    expect(runs.live).toBe(false);
    expect(runs.findings).toEqual([]);
  });

  it('asks who is there, and for its run', () => {
    training();
    expect(channel.sent.map(each => each.query.type)).toEqual(['hello', 'open']);
    expect(runs.connection).toBe('connected');
    expect(runs.host?.title).toBe('XLA:CPU rehearsal');
    expect(runs.live).toBe(true);
    expect(runs.page).toBe(runs.latest);
  });

  it('asks for no run where there is none', () => {
    runs.connected();
    runs.receive(messages.hello());
    expect(channel.count('open')).toBe(0);
  });

  it('takes a run that the kernel starts', () => {
    runs.receive(messages.run(1, page()));
    expect(runs.latest?.name).toBe('text-classifier');
    expect(told).toBe(1);
  });

  it('learns of a run in the middle by its beat', () => {
    runs.receive(messages.here('run-1', 40));
    expect(channel.last('open').query).toEqual({ type: 'open', run: 'run-1' });
    expect(channel.count('hello')).toBe(1);
  });
});

describe('updates', () => {
  it('put in what changed, and leave the rest the same object', () => {
    training(5);
    const before = runs.latest;
    const patch = {
      o: {
        elapsed: { '=': '2 min 00 s' },
        sections: { l: [2, 0, [], { 0: { o: { items: { l: [0, 0, [item(2)]] } } } }] }
      }
    };
    runs.receive(messages.update(5, {}, { patch }));
    expect(runs.latest?.elapsed).toBe('2 min 00 s');
    expect(runs.latest?.sections[0].items.map(each => each.key)).toEqual([
      '0-0-2',
      '0-0-1',
      '0-0-0'
    ]);
    expect(runs.latest?.charts).toBe(before?.charts);
    expect(runs.latest?.sections[0].items[1]).toBe(before?.sections[0].items[0]);
    expect(before?.elapsed).toBe('1 min 00 s');
  });

  it.each([
    [{ o: { missing: { '=': 1 } } }],
    [{ o: { elapsed: { '=': 7 } } }],
    [{ l: [0, 0, []] }],
    [{ '=': 'nothing' }],
    ['no patch']
  ])('that make no page of it ask for the whole run: %j', patch => {
    training(5);
    const before = runs.latest;
    runs.receive(messages.update(5, {}, { patch }));
    expect(runs.latest).toBe(before);
    expect(channel.count('open')).toBe(2);
    runs.receive(messages.run(7, page({ elapsed: '3 s' }), channel.last('open').request));
    expect(runs.latest?.elapsed).toBe('3 s');
  });

  it('ask again where one was missed, once', () => {
    training(5);
    const before = runs.latest;
    runs.receive(messages.update(7, { elapsed: '1 s' }));
    runs.receive(messages.update(8, { elapsed: '2 s' }));
    expect(runs.latest).toBe(before);
    expect(channel.count('open')).toBe(2);
    runs.receive(messages.run(9, page({ elapsed: '3 s' }), channel.last('open').request));
    runs.receive(messages.update(9, { elapsed: '4 s' }));
    expect(runs.latest?.elapsed).toBe('4 s');
  });

  it('ask once more where the answer got lost', () => {
    training(5);
    runs.receive(messages.update(7));
    now = 6_000;
    runs.receive(messages.update(8));
    expect(channel.count('open')).toBe(3);
  });

  it('do not ask a kernel again that answers nothing before its cell ends', () => {
    channel.busy = true;
    runs.receive(messages.here('run-1', 1));
    now = 60_000;
    runs.receive(messages.here('run-1', 30));
    expect(channel.count('open')).toBe(1);
    expect(runs.deaf).toBe(true);
  });

  it('of the past change nothing', () => {
    training(5);
    runs.receive(messages.update(3, { elapsed: '1 s' }));
    expect(runs.latest?.elapsed).toBe('1 min 00 s');
    expect(channel.count('open')).toBe(1);
  });

  it('of another run ask for that run', () => {
    training(5);
    runs.receive(messages.update(1, {}, { run: 'run-2' }));
    expect(channel.last('open').query).toEqual({ type: 'open', run: 'run-2' });
  });

  it('are missed by the beat too', () => {
    training(5);
    runs.receive(messages.here('run-1', 5));
    expect(channel.count('open')).toBe(1);
    runs.receive(messages.here('run-1', 6));
    expect(channel.count('open')).toBe(2);
  });
});

describe('an earlier run', () => {
  it('is shown while the live one goes on', () => {
    training(5);
    runs.open('run-0');
    const earlier = done({ id: 'run-0' });
    runs.receive(messages.run(0, earlier, channel.last('open').request));
    expect(runs.page).toEqual(earlier);
    runs.receive(messages.update(5, { elapsed: '500 s' }));
    expect(runs.page).toEqual(earlier);
    expect(runs.latest?.elapsed).toBe('500 s');
    runs.showLatest();
    expect(runs.page).toBe(runs.latest);
  });

  it('that another front end asked for is not shown here', () => {
    training(5);
    runs.receive(messages.run(0, done({ id: 'run-0' }), 'somebody else'));
    expect(runs.page?.id).toBe('run-1');
  });

  it('leaves the place to its own newest run', () => {
    training(5);
    runs.open('run-1');
    expect(runs.opened).toBeNull();
    expect(channel.count('open')).toBe(1);
  });

  it('does not hide that a new run began', () => {
    training(5);
    runs.open('run-0');
    runs.receive(messages.run(0, done({ id: 'run-0' }), channel.last('open').request));
    runs.receive(messages.run(1, page({ id: 'run-2' })));
    expect(runs.page?.id).toBe('run-0');
    expect(runs.latest?.id).toBe('run-2');
    expect(runs.live).toBe(true);
  });
});

describe('answers', () => {
  it('come to whom they are for', () => {
    training(5);
    runs.compare('run-0', 'run-1');
    const { request } = channel.last('compare');
    runs.receive(messages.compared('somebody else'));
    expect(runs.compared).toBeNull();
    runs.receive(messages.compared(request));
    expect(runs.compared?.comparison.title).toBe('Two runs');
    runs.closeCompared();
    expect(runs.compared).toBeNull();
  });

  it('are waited for', () => {
    training(5);
    runs.refreshRuns();
    expect(runs.waitsFor('runs')).toBe(true);
    runs.receive(messages.runs(channel.last('runs').request));
    expect(runs.waitsFor('runs')).toBe(false);
    expect(runs.runs).toHaveLength(1);
  });

  it('may be a problem, which the next request takes away', () => {
    training(5);
    runs.open('run-0');
    runs.receive(messages.problem('somebody else'));
    expect(runs.problem).toBeNull();
    runs.receive(messages.problem(channel.last('open').request));
    expect(runs.problem?.what).toBe('There is no such run.');
    runs.refreshRuns();
    expect(runs.problem).toBeNull();
  });

  it('of a check are everybody’s', () => {
    training(5);
    runs.receive(messages.findings(null));
    expect(runs.findings).toHaveLength(1);
    expect(runs.checked?.checked).toBe('5 cells');
    expect(runs.askedFor).toBeNull();
    runs.check([]);
    runs.receive(messages.findings(channel.last('check').request));
    expect(runs.askedFor).toBe(runs.checked);
  });
});

describe('stop', () => {
  it('asks the kernel', () => {
    training(5);
    runs.stop();
    expect(channel.last('stop').query).toEqual({ type: 'stop', run: 'run-1' });
    expect(runs.stopping).toBe('run-1'); // from the click on
    runs.receive(messages.stopping('run-1', channel.last('stop').request));
    expect(runs.waitsFor('stop')).toBe(false);
    expect(runs.stopping).toBe('run-1');
    runs.receive(messages.run(8, done({ state: 'stopped' })));
    expect(runs.stopping).toBe('');
    expect(runs.live).toBe(false);
  });

  it('may be asked for again where it failed, or where nothing comes of it', () => {
    vi.useFakeTimers();
    training(5);
    runs.stop();
    runs.receive(messages.problem(channel.last('stop').request));
    expect(runs.stopping).toBe('');
    runs.stop();
    vi.advanceTimersByTime(30_000);
    expect(runs.stopping).toBe('');
    vi.useRealTimers();
  });

  it('that another page asks for is seen here', () => {
    training(5);
    runs.receive(messages.stopping('run-1'));
    expect(runs.stopping).toBe('run-1');
  });

  it('interrupts a kernel that cannot answer', () => {
    training(5);
    runs.receive(messages.hello({ run: 'run-1', live: true, answers: false }));
    channel.busy = true;
    runs.stop();
    expect(channel.interrupted).toBe(1);
    expect(channel.count('stop')).toBe(0);
  });

  it('never interrupts another cell than the run’s own', () => {
    runs.receive(messages.hello({ run: 'run-1', live: true, answers: false }));
    runs.receive(messages.run(1, page({ background: true })));
    channel.busy = true;
    runs.stop();
    expect(channel.interrupted).toBe(0);
    expect(channel.count('stop')).toBe(1);
  });

  it('does nothing where nothing goes on', () => {
    runs.stop();
    expect(channel.sent).toEqual([]);
  });
});

describe('a restart', () => {
  it('leaves the last record in sight, and nothing that goes on', () => {
    training(5);
    runs.restarted();
    expect(runs.connection).toBe('restarted');
    expect(runs.live).toBe(false);
    expect(runs.lost).toBe(true);
    expect(runs.page?.id).toBe('run-1');
    runs.connected();
    runs.receive(messages.hello());
    expect(runs.live).toBe(false);
    runs.receive(messages.run(1, page({ id: 'run-2' })));
    expect(runs.lost).toBe(false);
    expect(runs.live).toBe(true);
  });

  it('of a kernel that had nothing loaded is not told', () => {
    runs.restarted();
    expect(runs.connection).toBe('absent');
  });

  it('of the kernel after the run’s end loses nothing', () => {
    training(5);
    runs.receive(messages.run(9, done()));
    runs.restarted();
    expect(runs.lost).toBe(false);
  });
});

describe('what does not fit', () => {
  it('changes nothing, and a version is told', () => {
    training(5);
    const before = runs.latest;
    const warned = vi.spyOn(console, 'warn').mockImplementation(() => undefined);
    expect(runs.receive({ ...messages.update(5), seq: null })).toBe(true);
    expect(warned).toHaveBeenCalledOnce();
    expect(runs.latest).toBe(before);
    expect(runs.receive({ other: true })).toBe(false);
    runs.receive({ ...messages.update(5), v: 2 });
    expect(runs.mismatch).toBe('2');
    expect(runs.latest).toBe(before);
    runs.receive(messages.hello({ run: 'run-1', live: true }));
    expect(runs.mismatch).toBe('');
    warned.mockRestore();
  });
});

describe('the rate', () => {
  it('is told when it is set, when the kernel comes, and now and then', () => {
    channel.open = false;
    runs.setRate(60);
    expect(channel.count('rate')).toBe(0);
    channel.open = true;
    training(5);
    expect(channel.last('rate').query).toEqual({ type: 'rate', seconds: 10 });
    runs.setRate(0.5);
    expect(channel.last('rate').query).toEqual({ type: 'rate', seconds: 0.5 });
    runs.receive(messages.here('run-1', 5));
    expect(channel.count('rate')).toBe(2);
    now = 30_000;
    runs.receive(messages.here('run-1', 5));
    expect(channel.count('rate')).toBe(3);
  });
});

it('is silent after it was disposed', () => {
  runs.dispose();
  runs.receive(messages.run(1, page()));
  expect(told).toBe(0);
  expect(runs.isDisposed).toBe(true);
});
