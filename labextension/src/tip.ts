// The tooltip of a badge. Everything from a record is inserted as text.

import { TranslationBundle } from '@jupyterlab/translation';
import { Badge } from './problems';
import { Problem } from './types';

/** Milliseconds that the pointer has for the way from the badge to the box. */
const GRACE = 250;
const GAP = 4;
const EDGE = 8;
const ID = 'jp-tpu-tip';

export class Tip {
  constructor(private readonly _trans: TranslationBundle) {
    this._node.id = ID;
    this._node.className = 'jp-tpu-tip';
    this._node.setAttribute('role', 'tooltip');
    this._node.addEventListener('pointerenter', () => clearTimeout(this._timer));
    this._node.addEventListener('pointerleave', () => this._hideSoon());
  }

  show(anchor: HTMLElement, badge: Badge): void {
    clearTimeout(this._timer);
    if (this._anchor !== anchor) {
      this.hide();
      this._anchor = anchor;
      this._node.replaceChildren(...badge.problems.map(one => this._part(one.problem)));
      document.body.append(this._node);
      anchor.setAttribute('aria-describedby', ID);
      document.addEventListener('keydown', this._onKey, true);
      document.addEventListener('wheel', this._onWheel, { capture: true, passive: true });
      this._place(anchor);
    }
  }

  /** The badge is no longer pointed at, or it is gone. */
  leave(anchor: HTMLElement): void {
    if (anchor === this._anchor && !anchor.isConnected) {
      this.hide();
    } else if (anchor === this._anchor && document.activeElement !== anchor) {
      this._hideSoon();
    }
  }

  hide(): void {
    clearTimeout(this._timer);
    this._anchor?.removeAttribute('aria-describedby');
    this._anchor = null;
    this._node.remove();
    document.removeEventListener('keydown', this._onKey, true);
    document.removeEventListener('wheel', this._onWheel, true);
  }

  private _hideSoon(): void {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this.hide(), GRACE);
  }

  private _part(problem: Problem): HTMLElement {
    const part = document.createElement('section');
    part.dataset.tone = problem.tone;
    const head = line(part, 'jp-tpu-tip-head', '');
    head.append(...worded(problem.title));
    line(head, 'jp-tpu-tip-count', problem.count);
    line(part, 'jp-tpu-tip-text', '').append(...worded(problem.text));
    problem.differences.forEach(text => line(part, 'jp-tpu-tip-code', text));
    if (problem.fix !== '') {
      const fix = line(part, 'jp-tpu-tip-fix', '');
      line(fix, 'jp-tpu-tip-label', this._trans.__('Fix:'));
      fix.append(' ', ...worded(problem.fix));
    }
    return part;
  }

  /** Below the badge, above it where there is more room, and within the window. */
  private _place(anchor: HTMLElement): void {
    const at = anchor.getBoundingClientRect();
    const below = window.innerHeight - at.bottom - GAP - EDGE;
    const above = at.top - GAP - EDGE;
    const up = this._node.offsetHeight > below && above > below;
    const room = up ? above : below;
    const left = Math.max(
      EDGE,
      Math.min(at.left, window.innerWidth - this._node.offsetWidth - EDGE)
    );
    this._node.style.maxHeight = `${room}px`;
    this._node.style.left = `${left}px`;
    this._node.style.top = up ? 'auto' : `${at.bottom + GAP}px`;
    this._node.style.bottom = up ? `${window.innerHeight - at.top + GAP}px` : 'auto';
  }

  private _onKey = (event: KeyboardEvent): void => {
    if (event.key === 'Escape') {
      event.stopPropagation();
    }
    // Typing elsewhere: the box would be in the way.
    if (event.key === 'Escape' || document.activeElement !== this._anchor) {
      this.hide();
    }
  };

  private _onWheel = (event: Event): void => {
    if (!(event.target instanceof Node && this._node.contains(event.target))) {
      this.hide();
    }
  };

  private readonly _node = document.createElement('div');
  private _anchor: HTMLElement | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}

function line(parent: HTMLElement, name: string, text: string): HTMLElement {
  const node = document.createElement(
    name.endsWith('label') || name.endsWith('count') ? 'span' : 'div'
  );
  node.className = name;
  node.textContent = text;
  return parent.appendChild(node);
}

/** What stands between backticks is code. */
function worded(text: string): (string | HTMLElement)[] {
  return text.split('`').map((part, at) => {
    if (at % 2 === 0) {
      return part;
    }
    const code = document.createElement('code');
    code.textContent = part;
    return code;
  });
}
