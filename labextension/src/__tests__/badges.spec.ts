import { EditorState } from '@codemirror/state';
import { EditorView } from '@codemirror/view';
import { nullTranslator } from '@jupyterlab/translation';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { BadgeBoard } from '../board';
import { badgesOf } from '../badges';
import { mark } from '../marks';
import { Badge } from '../problems';
import { problem } from './sample';

const trans = nullTranslator.load('tpu_magics');
const DOC = 'if x > 1:\n    torch_xla.sync()\ny = x';
const told = (text = 'An input has another shape.', run = 'run-1'): Badge => ({
  line: 2,
  problems: [{ key: `${run} x`, problem: problem({ text }) }]
});

describe('the badges of an editor', () => {
  const text = {};
  let picked: Badge[];
  let board: BadgeBoard;
  let views: EditorView[];
  const open = (): EditorView => {
    const state = EditorState.create({ doc: DOC, extensions: board.extension(text) });
    views.push(new EditorView({ state, parent: document.body }));
    return views[views.length - 1];
  };
  const buttons = (view: EditorView): HTMLButtonElement[] => [
    ...view.dom.querySelectorAll('button')
  ];

  beforeEach(() => {
    picked = [];
    views = [];
    board = new BadgeBoard(trans, badge => picked.push(badge));
    // jsdom lays nothing out.
    vi.spyOn(EditorView.prototype, 'requestMeasure').mockImplementation(() => undefined);
  });

  afterEach(() => {
    views.forEach(view => view.destroy());
    vi.restoreAllMocks();
    document.body.replaceChildren();
  });

  it('are buttons that say it in words', async () => {
    const view = open();
    board.show(text, [told()]);
    await Promise.resolve();
    const [button] = buttons(view);
    expect(button.textContent).toContain('recompiled 3x');
    expect(button.querySelector('svg')).not.toBeNull();
    expect(button.dataset.tone).toBe('warning');
    expect(button.getAttribute('aria-label')).toBe(
      'recompiled 3x. Line 2. Recompiles: the shape of an input changes'
    );
    button.click();
    expect(picked).toHaveLength(1);
  });

  it('are in an editor that comes later, and in each that shows the cell', async () => {
    const first = open();
    board.show(text, [told()]);
    await Promise.resolve();
    const second = open();
    expect([first, second].map(view => buttons(view).length)).toEqual([1, 1]);
    board.show(text, []);
    await Promise.resolve();
    expect([first, second].map(view => buttons(view).length)).toEqual([0, 0]);
  });

  it('are in the editors of their cell only', async () => {
    const state = EditorState.create({ doc: DOC, extensions: board.extension({}) });
    const other = new EditorView({ state, parent: document.body });
    views.push(other);
    board.show(text, [told()]);
    await Promise.resolve();
    expect(buttons(other)).toEqual([]);
  });

  it('are gone with the first key', async () => {
    const view = open();
    board.show(text, [told()]);
    await Promise.resolve();
    view.dispatch({ changes: { from: 0, insert: ' ' } });
    expect(buttons(view)).toEqual([]);
    expect(badgesOf(view.state)).toEqual([]);
  });

  it('are drawn again only when they are others', async () => {
    const view = open();
    board.show(text, [told()]);
    await Promise.resolve();
    const [button] = buttons(view);
    board.show(text, [told()]);
    await Promise.resolve();
    expect(buttons(view)[0]).toBe(button);
    board.show(text, [told(undefined, 'run-2')]);
    await Promise.resolve();
    expect(buttons(view)[0]).not.toBe(button);
  });

  it('change no line', async () => {
    const view = open();
    const before = view.contentDOM.cloneNode(true);
    board.show(text, [told()]);
    await Promise.resolve();
    expect(view.contentDOM.isEqualNode(before)).toBe(true);
  });

  it('keep their keys to themselves', async () => {
    const view = open();
    board.show(text, [told()]);
    await Promise.resolve();
    const heard = vi.fn();
    document.body.addEventListener('keydown', heard);
    buttons(view)[0].dispatchEvent(new KeyboardEvent('keydown', { key: 'd', bubbles: true }));
    expect(heard).not.toHaveBeenCalled();
    expect(buttons(view)[0].closest('[data-lm-suppress-shortcuts]')).not.toBeNull();
  });

  it('say more on focus and on hover, as text', async () => {
    const view = open();
    board.show(text, [told('<img src=x onerror="alert(1)"> and `code`')]);
    await Promise.resolve();
    const [button] = buttons(view);
    button.focus();
    const tip = document.getElementById(button.getAttribute('aria-describedby') ?? '');
    expect(tip?.getAttribute('role')).toBe('tooltip');
    expect(tip?.textContent).toContain('<img src=x onerror="alert(1)"> and code');
    expect(tip?.textContent).toContain('Fix: Pad to a multiple of 64.');
    expect(tip?.querySelector('img')).toBeNull();
    document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }));
    expect(document.querySelector('[role=tooltip]')).toBeNull();
    button.dispatchEvent(new Event('pointerenter'));
    expect(document.querySelector('[role=tooltip]')).not.toBeNull();
  });

  it('take their box with them', async () => {
    vi.useFakeTimers();
    const view = open();
    board.show(text, [told()]);
    await Promise.resolve();
    buttons(view)[0].focus();
    view.dispatch({ changes: { from: 0, insert: ' ' } });
    vi.advanceTimersByTime(1000);
    expect(document.querySelector('[role=tooltip]')).toBeNull();
    vi.useRealTimers();
  });
});

describe('a line that is marked', () => {
  it('is marked for a moment', () => {
    vi.useFakeTimers();
    const view = new EditorView({ doc: DOC, parent: document.body });
    const marked = (): (string | null)[] =>
      [...view.dom.querySelectorAll('.jp-tpu-marked-line')].map(line => line.textContent);
    mark(view, view.state.doc.line(2).from);
    expect(marked()).toEqual(['    torch_xla.sync()']);
    vi.advanceTimersByTime(1000);
    mark(view, view.state.doc.line(3).from);
    expect(marked()).toEqual(['y = x']);
    vi.advanceTimersByTime(2000);
    expect(marked()).toEqual(['y = x']);
    vi.advanceTimersByTime(1000);
    expect(marked()).toEqual([]);
    vi.useRealTimers();
    view.destroy();
  });
});
