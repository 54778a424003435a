// Small pieces that all parts of the panel are made of.
//
// Whatever comes from a record is only ever text.

import { TranslationBundle } from '@jupyterlab/translation';
import { checkIcon, copyIcon } from '@jupyterlab/ui-components';
import * as React from 'react';
import { fullPlace, grouped, place } from '../format';
import { Reach } from '../reveal';
import { Site, Tone } from '../types';

/** What every piece may need. `onSite` shows a line in the notebook; null: there is no notebook to show it in. */
export interface Surroundings {
  trans: TranslationBundle;
  onSite: ((site: Site) => Reach) | null;
  /** Which sections were folded, or unfolded, by hand. */
  folds: Map<string, boolean>;
  /** Of the run that is drawn. */
  name?: string;
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

const SYMBOLS: { [tone in Tone]: string } = {
  '': '',
  live: '●',
  ok: '✓',
  info: 'i',
  warning: '!',
  broken: '✗'
};

export const toneClass = (tone: Tone): string => `tpu-mod-${tone || 'plain'}`;

/** A word on a tint, with its symbol. */
export function Chip(props: { tone: Tone; children: string }): JSX.Element {
  return (
    <span className={`tpu-Chip ${toneClass(props.tone)}`}>
      {`${SYMBOLS[props.tone]} ${props.children}`.trim()}
    </span>
  );
}

/** The symbol alone, where the words stand beside it. */
export function Mark({ tone }: { tone: Tone }): JSX.Element {
  return (
    <span className={`tpu-Mark ${toneClass(tone)}`} aria-hidden="true">
      {SYMBOLS[tone] || '·'}
    </span>
  );
}

// -- code ------------------------------------------------------------------------------------------------------------

export function Code(props: { children: string }): JSX.Element {
  return <code className="tpu-Code">{props.children}</code>;
}

/** Text in which what stands between backticks is code. A command has a button that copies it. */
export function Worded(props: { children: string }): JSX.Element {
  const parts = props.children.split('`');
  if (parts.length % 2 === 0) {
    return <>{props.children}</>;
  }
  return (
    <>
      {parts.map((part, at) =>
        at % 2 === 0 ? (
          part
        ) : (
          <React.Fragment key={at}>
            <Code>{part}</Code>
            {COMMAND.test(part) && <Copy text={part} />}
          </React.Fragment>
        )
      )}
    </>
  );
}

const COMMAND = /^(?:%|!|(?:pip|python3?|uv|jupyter) )\S/;

/** Lines as they stand, with a button that copies them. */
export function CodeBlock(props: { lines: readonly string[]; label: string }): JSX.Element {
  const text = props.lines.join('\n');
  return (
    <div className="tpu-CodeBlock">
      <pre tabIndex={props.lines.length > 8 ? 0 : undefined} aria-label={props.label}>
        {text}
      </pre>
      <Copy text={text} />
    </div>
  );
}

/** Milliseconds that it says so. */
const COPIED = 1500;

function Copy(props: { text: string }): JSX.Element {
  const trans = useTrans();
  const [done, setDone] = React.useState(false);
  const copy = (): void => {
    void navigator.clipboard?.writeText(props.text).then(() => {
      setDone(true);
      setTimeout(() => setDone(false), COPIED);
    });
  };
  const Icon = done ? checkIcon : copyIcon;
  return (
    <button
      type="button"
      className="tpu-Copy"
      title={done ? trans.__('Copied') : trans.__('Copy')}
      aria-label={done ? trans.__('Copied') : trans.__('Copy %1', props.text.slice(0, 60))}
      onClick={copy}
    >
      <Icon.react tag="span" />
    </button>
  );
}

// -- places ----------------------------------------------------------------------------------------------------------

/** A line of the notebook; a click shows it. `words`: in place of its name. */
export function Place(props: { site: Site; words?: string }): JSX.Element {
  const { trans, onSite } = useAround();
  const [reach, setReach] = React.useState<Reach>('line');
  const words = props.words || place(props.site, trans);
  if (onSite === null || !props.site.path) {
    return <span title={fullPlace(props.site, trans)}>{words}</span>;
  }
  const show = (event: React.MouseEvent): void => {
    event.stopPropagation();
    setReach(onSite(props.site));
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
      {reach !== 'line' && (
        <span className="tpu-Small" role="status">
          {' '}
          {reach === 'cell'
            ? trans.__('(its cell was edited: the line is not there any more)')
            : trans.__('(this line is not in the open notebook)')}
        </span>
      )}
    </>
  );
}

// -- parts that fold, and long lists ---------------------------------------------------------------------------------

/** A part of the panel under a heading that folds; `summary`: the most of it in one line. */
export function Fold(props: {
  name: string;
  title: string;
  summary?: React.ReactNode;
  /** Buttons beside the heading. */
  aside?: React.ReactNode;
  closed?: boolean;
  /** Another object than before brings the part into sight. */
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
  const toggle = (): void => {
    folds.set(props.name, !open);
    setOpen(!open);
  };
  return (
    <section className="tpu-Section" data-section={props.name} ref={node}>
      <div className="tpu-Section-head">
        <h3>
          <button type="button" aria-expanded={open} aria-controls={`${id}-body`} onClick={toggle}>
            <span className="tpu-Caret" aria-hidden="true" />
            <span className="tpu-Section-title">{props.title}</span>
            {props.summary && <span className="tpu-Section-summary">{props.summary}</span>}
          </button>
        </h3>
        {props.aside}
      </div>
      <div id={`${id}-body`} className="tpu-Section-body" hidden={!open}>
        {open && props.children}
      </div>
    </section>
  );
}

/** The first of a long list, and a button for more. */
export function useFirst<T>(all: readonly T[], atOnce: number): [readonly T[], JSX.Element | null] {
  const trans = useTrans();
  const [most, setMost] = React.useState(atOnce);
  const left = all.length - most;
  if (left <= 0) {
    return [all, null];
  }
  const more = (
    <button type="button" className="tpu-Button tpu-More" onClick={() => setMost(most + atOnce)}>
      {trans.__('Show %1 more (of %2)', Math.min(atOnce, left), grouped(left))}
    </button>
  );
  return [all.slice(0, most), more];
}

/** One stop for the Tab key: arrow keys go to the other buttons of the row. */
export function TabStop(props: {
  as: 'li' | 'tr';
  className?: string;
  data?: { [name: `data-${string}`]: string };
  children: React.ReactNode;
}): JSX.Element {
  const row = React.useRef<HTMLElement | null>(null);
  const stops = (): HTMLElement[] => [...(row.current?.querySelectorAll<HTMLElement>(STOPS) ?? [])];
  React.useLayoutEffect(() => {
    const all = stops();
    const current = all.find(one => one.tabIndex === 0 && one.dataset.stop !== undefined) ?? all[0];
    all.forEach(one => {
      one.dataset.stop = '';
      one.tabIndex = one === current ? 0 : -1;
    });
  });
  const onKey = (event: React.KeyboardEvent): void => {
    const by = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    const all = stops();
    const next = all[all.indexOf(document.activeElement as HTMLElement) + by];
    if (by !== 0 && all.includes(document.activeElement as HTMLElement) && next) {
      all.forEach(one => (one.tabIndex = one === next ? 0 : -1));
      next.focus();
      event.preventDefault();
      event.stopPropagation();
    }
  };
  const given = { className: props.className, onKeyDown: onKey, ...props.data };
  return props.as === 'li' ? (
    <li ref={node => void (row.current = node)} {...given}>
      {props.children}
    </li>
  ) : (
    <tr ref={node => void (row.current = node)} {...given}>
      {props.children}
    </tr>
  );
}

const STOPS = 'button, input';

/** Wide things scroll by themselves; with the keyboard too. */
export function Scroll(props: { label: string; children: React.ReactNode }): JSX.Element {
  return (
    <div className="tpu-Scroll" role="group" aria-label={props.label} tabIndex={0}>
      {props.children}
    </div>
  );
}

export function Notes(props: { lines: readonly string[] }): JSX.Element | null {
  return props.lines.length === 0 ? null : (
    <div className="tpu-Notes">
      {props.lines.map((line, at) => (
        <p key={at}>
          <Worded>{line}</Worded>
        </p>
      ))}
    </div>
  );
}
