// The badges of one editor: small buttons at the ends of its lines.

import { EditorState, Extension, StateEffect, StateField } from '@codemirror/state';
import { EditorView, PluginValue, ViewPlugin, ViewUpdate } from '@codemirror/view';
import { LabIcon } from '@jupyterlab/ui-components';
import { infoIcon, recompileIcon, warningIcon } from './icons';
import { along, room } from './placing';
import { Badge } from './problems';
import { Tone } from './types';

/** How a badge looks and what it does. */
export interface Face {
  words: string;
  spoken: string;
  tone: Tone;
  recompiled: boolean;
}

/** What the badges of all editors share. */
export interface BadgeHost {
  face(badge: Badge): Face;
  /** Someone points at a badge, or it has the focus. */
  point(button: HTMLElement, badge: Badge): void;
  leave(button: HTMLElement): void;
  pick(badge: Badge): void;
  /** An editor came, or went. */
  opened(view: EditorView): void;
  closed(view: EditorView): void;
}

/** The form says what the colour says. */
function iconOf({ tone, recompiled }: Face): LabIcon {
  const needsAction = tone === 'warning' || tone === 'broken';
  return recompiled && needsAction ? recompileIcon : needsAction ? warningIcon : infoIcon;
}

/** Give an editor these badges. */
export const setBadges = StateEffect.define<readonly Badge[]>();

const field = StateField.define<readonly Badge[]>({
  create: () => [],
  update: (badges, transaction) => {
    const given = transaction.effects.find(effect => effect.is(setBadges));
    return given ? given.value : transaction.docChanged ? [] : badges;
  }
});

/** The extension of an editor that begins with these badges. */
export function badgeExtension(host: BadgeHost, first: () => readonly Badge[]): Extension {
  return [field.init(() => first()), ViewPlugin.define(view => new Overlay(view, host))];
}

/** The badges that an editor has now. */
export function badgesOf(state: EditorState): readonly Badge[] {
  return state.field(field, false) ?? [];
}

class Overlay implements PluginValue {
  constructor(
    private readonly _view: EditorView,
    private readonly _host: BadgeHost
  ) {
    this._node.className = 'jp-tpu-badges';
    // Keys and the focus of a badge are its own: the notebook would take them for the cell's.
    this._node.dataset.lmSuppressShortcuts = 'true';
    for (const event of ['keydown', 'keyup', 'focusin', 'mousedown', 'dblclick']) {
      this._node.addEventListener(event, heard => heard.stopPropagation());
    }
    _view.scrollDOM.addEventListener('scroll', this._onScroll, { passive: true });
    this._draw(badgesOf(_view.state));
    _host.opened(_view);
  }

  update(update: ViewUpdate): void {
    const badges = badgesOf(update.state);
    if (badges !== badgesOf(update.startState)) {
      this._draw(badges);
    } else if (update.geometryChanged || update.viewportChanged) {
      this._place();
    }
  }

  destroy(): void {
    this._host.closed(this._view);
    this._view.scrollDOM.removeEventListener('scroll', this._onScroll);
    this._clear();
    this._node.remove();
  }

  private _draw(badges: readonly Badge[]): void {
    this._clear();
    this._badges = badges.map(badge => ({ badge, button: this._button(badge), wide: 0 }));
    this._node.append(...this._badges.map(one => one.button));
    if (badges.length > 0 && !this._node.isConnected) {
      this._view.scrollDOM.append(this._node);
    } else if (badges.length === 0) {
      this._node.remove();
    }
    this._place();
  }

  private _clear(): void {
    for (const { button } of this._badges) {
      button.remove();
      this._host.leave(button);
    }
    this._badges = [];
  }

  private _button(badge: Badge): HTMLButtonElement {
    const face = this._host.face(badge);
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'jp-tpu-badge';
    button.dataset.tone = face.tone;
    button.setAttribute('aria-label', face.spoken);
    iconOf(face).element({ container: button.appendChild(document.createElement('span')) });
    const words = button.appendChild(document.createElement('span'));
    words.className = 'jp-tpu-badge-words';
    words.textContent = face.words;
    button.addEventListener('pointerenter', () => this._host.point(button, badge));
    button.addEventListener('focus', () => this._host.point(button, badge));
    button.addEventListener('pointerleave', () => this._host.leave(button));
    button.addEventListener('blur', () => this._host.leave(button));
    button.addEventListener('click', () => this._host.pick(badge));
    return button;
  }

  private _place(): void {
    if (this._badges.length > 0) {
      this._view.requestMeasure({
        key: this,
        read: () => this._measured(),
        write: layout => this._put(layout)
      });
    }
  }

  /** Where each badge goes: all is read before anything is moved. */
  private _measured(): Layout {
    const { scrollDOM, contentDOM, state } = this._view;
    const frame = scrollDOM.getBoundingClientRect();
    const sight = { left: scrollDOM.scrollLeft, width: scrollDOM.clientWidth };
    const content = contentDOM.offsetLeft + contentDOM.offsetWidth;
    const layout: Layout = { spots: [], width: 0 };
    for (const drawn of this._badges) {
      const line = drawn.badge.line <= state.doc.lines ? state.doc.line(drawn.badge.line) : null;
      const at = line && sight.width > 0 ? this._view.coordsAtPos(line.to, -1) : null;
      if (at === null) {
        layout.spots.push(null);
        continue;
      }
      drawn.wide ||= drawn.button.offsetWidth;
      const end = at.right - frame.left + sight.left;
      const spot = along(end, drawn.wide, at.bottom - at.top, sight);
      layout.spots.push({
        ...spot,
        top: at.top - frame.top + scrollDOM.scrollTop,
        height: at.bottom - at.top
      });
      layout.width = Math.max(layout.width, room(end, drawn.wide, content, sight));
    }
    return layout;
  }

  private _put(layout: Layout): void {
    this._node.style.width = `${layout.width}px`;
    this._badges.forEach(({ button }, at) => {
      const spot = layout.spots[at];
      button.style.visibility = spot ? 'visible' : 'hidden';
      if (spot) {
        button.classList.toggle('jp-mod-narrow', spot.narrow);
        Object.assign(button.style, {
          left: `${spot.left}px`,
          top: `${spot.top}px`,
          width: spot.narrow ? `${spot.height}px` : '',
          height: `${spot.height}px`
        });
      }
    });
  }

  private _onScroll = (): void => this._place();

  private readonly _node = document.createElement('div');
  private _badges: Drawn[] = [];
}

/** A badge that is drawn. `wide`: its pixels with words; 0: not measured yet, because the editor was not shown. */
interface Drawn {
  badge: Badge;
  button: HTMLButtonElement;
  wide: number;
}

/** Where all badges go; null: its line is out of sight. `width`: pixels that the scrolled content has to have. */
interface Layout {
  spots: ({ left: number; top: number; height: number; narrow: boolean } | null)[];
  width: number;
}
