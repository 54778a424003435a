// Small pieces that all parts of the panel are made of.
//
// Whatever comes from a record is only ever text.

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { fullPlace, place } from '../format';
import { Reached, Site, Tone } from '../types';

/** What every piece may need. `onSite` shows a line in the notebook; null: there is no notebook to show it in. */
export interface Surroundings {
  trans: TranslationBundle;
  onSite: ((site: Site) => Reached) | null;
  /** Which sections were folded, or unfolded, by hand. */
  folds: Map<string, boolean>;
}

export const Around = React.createContext<Surroundings | null>(null);

export function useAround(): Surroundings {
  const around = React.useContext(Around);
  if (around === null) {
    throw new Error('a piece of the panel without its surroundings');
  }
  return around;
}

export function useTrans(): TranslationBundle {
  return useAround().trans;
}

const TONES: readonly Tone[] = ['ok', 'warning', 'broken'];
const SYMBOLS: { [tone in Tone]: string } = { '': '', ok: '✓', warning: '!', broken: '✗' };

export function toneOf(state: string): Tone {
  return TONES.find(tone => tone === state) ?? '';
}

/** A word on a tint; `symbol` false where the word has one already. */
export function Chip(props: { tone: Tone; children: string; symbol?: boolean }): JSX.Element {
  const symbol = props.symbol === false ? '' : SYMBOLS[props.tone];
  return (
    <span className={`tpu-Chip tpu-mod-${props.tone || 'plain'}`}>
      {symbol ? `${symbol} ${props.children}` : props.children}
    </span>
  );
}

export function Code(props: { children: string }): JSX.Element {
  return <code className="tpu-Code">{props.children}</code>;
}

/** Text in which what stands between backticks is code. */
export function Worded(props: { children: string }): JSX.Element {
  const parts = props.children.split('`');
  if (parts.length % 2 === 0) {
    return <>{props.children}</>;
  }
  return <>{parts.map((part, at) => (at % 2 ? <Code key={at}>{part}</Code> : part))}</>;
}

/** A line of the notebook; a click shows it. */
export function Place(props: { site: Site }): JSX.Element {
  const { trans, onSite } = useAround();
  const [reached, setReached] = React.useState<Reached>('line');
  const words = place(props.site, trans);
  if (onSite === null || !props.site.path) {
    return <span title={fullPlace(props.site, trans)}>{words}</span>;
  }
  const show = (event: React.MouseEvent) => {
    event.stopPropagation();
    setReached(onSite(props.site));
  };
  return (
    <>
      <button
        type="button"
        className="tpu-Link"
        title={trans.__('Show %1 in the notebook', fullPlace(props.site, trans))}
        onClick={show}
      >
        {words}
      </button>
      {reached !== 'line' && (
        <span className="tpu-Small" role="status">
          {' '}
          {reached === 'cell'
            ? trans.__('(its cell was edited: the line is not there any more)')
            : trans.__('(this line is not in the open notebook)')}
        </span>
      )}
    </>
  );
}

/** A part of the panel under a heading that folds. */
export function Section(props: {
  name: string;
  title: string;
  aside?: React.ReactNode;
  closed?: boolean;
  /** Another object than before brings the section into sight. */
  call?: object | null;
  children: React.ReactNode;
}): JSX.Element {
  const { folds } = useAround();
  const [open, setOpen] = React.useState(folds.get(props.name) ?? !props.closed);
  const id = React.useId();
  const node = React.useRef<HTMLElement>(null);
  const before = React.useRef(props.call);
  React.useEffect(() => {
    if (props.call && props.call !== before.current) {
      setOpen(true);
      node.current?.scrollIntoView?.({ block: 'start' });
    }
    before.current = props.call;
  }, [props.call]);
  const toggle = () => {
    folds.set(props.name, !open);
    setOpen(!open);
  };
  return (
    <section className="tpu-Section" data-section={props.name} ref={node}>
      <div className="tpu-Section-head">
        <h3>
          <button type="button" aria-expanded={open} aria-controls={`${id}-body`} onClick={toggle}>
            <span className="tpu-Caret" aria-hidden="true" />
            {props.title}
          </button>
        </h3>
        <span className="tpu-Section-aside">{props.aside}</span>
      </div>
      <div id={`${id}-body`} className="tpu-Section-body" hidden={!open}>
        {open && props.children}
      </div>
    </section>
  );
}

/** Wide things scroll by themselves; with the keyboard too. */
export function Scroll(props: { label: string; children: React.ReactNode }): JSX.Element {
  return (
    <div className="tpu-Scroll" role="group" aria-label={props.label} tabIndex={0}>
      {props.children}
    </div>
  );
}

export function Notes(props: { lines: string[] }): JSX.Element | null {
  const lines = props.lines.filter(line => line !== '');
  return lines.length === 0 ? null : <p className="tpu-Small">{lines.join(' ')}</p>;
}
