// Which badges are shown where: those of the runs that a notebook's outputs show, of its kernel's run and of the newest
// check, except in cells that were edited since.

import { Extension } from '@codemirror/state';
import { EditorView } from '@codemirror/view';
import { ICodeCellModel } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';
import { BadgeHost, Face, badgeExtension, setBadges } from './badges';
import { cellTexts, isCode } from './cells';
import { isObject } from './checks';
import { Memory } from './memory';
import { KernelRuns } from './model';
import { recordsOf } from './outputs';
import {
  Badge,
  ShownRun,
  SiteProblem,
  kindOf,
  siteProblems,
  sitesOf,
  spoken,
  toneOf,
  wordsOf
} from './problems';
import { ITpuSessions } from './session';
import { TpuSettings } from './settings';
import { Tip } from './tip';
import { Page } from './types';
import { readRecord } from './validate';

const NONE: readonly Badge[] = [];

/** The badges of all editors; a cell's editor comes and goes with its being rendered, its text stays. */
export class BadgeBoard {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _pick: (badge: Badge) => void
  ) {
    this._tip = new Tip(_trans);
  }

  /** The extension of each editor of `text`, a cell's shared model. */
  extension(text: object): Extension {
    return badgeExtension(this._host(text), () => this._shown.get(text) ?? NONE);
  }

  /** Show these badges at a text, and no others. */
  show(text: object, badges: readonly Badge[]): void {
    if (signature(badges) === signature(this._shown.get(text) ?? NONE)) {
      return;
    }
    this._shown.set(text, badges);
    // An edit tells of itself while its editor is at work, which takes nothing new then.
    queueMicrotask(() => {
      for (const view of this._views.get(text) ?? []) {
        view.dispatch({ effects: setBadges.of(this._shown.get(text) ?? NONE) });
      }
    });
  }

  private _host(text: object): BadgeHost {
    const views = this._views.get(text) ?? new Set();
    this._views.set(text, views);
    return {
      face: badge => this._face(badge),
      point: (button, badge) => this._tip.show(button, badge),
      leave: button => this._tip.leave(button),
      pick: badge => {
        this._tip.hide();
        this._pick(badge);
      },
      opened: view => views.add(view),
      closed: view => views.delete(view)
    };
  }

  private _face(badge: Badge): Face {
    return {
      words: wordsOf(badge, this._trans),
      spoken: spoken(badge, this._trans),
      tone: toneOf(badge),
      recompiled: kindOf(badge) === 'recompile'
    };
  }

  private readonly _tip: Tip;
  private readonly _shown = new WeakMap<object, readonly Badge[]>();
  private readonly _views = new WeakMap<object, Set<EditorView>>();
}

/** Another where anything else is to be drawn. */
const signature = (badges: readonly Badge[]): string =>
  JSON.stringify(
    badges.map(({ line, problems }) => [
      line,
      problems.map(({ key, problem }) => [key, problem.badge, problem.count, problem.text])
    ])
  );

/** Keeps the badges of one notebook what they should be. */
export class NotebookBadges implements IDisposable {
  constructor(
    private readonly _panel: NotebookPanel,
    private readonly _sessions: ITpuSessions,
    private readonly _settings: TpuSettings,
    private readonly _board: BadgeBoard,
    private readonly _trans: TranslationBundle
  ) {
    _panel.disposed.connect(() => this.dispose());
    _panel.sessionContext.kernelChanged.connect(this._onKernel, this);
    _sessions.currentChanged.connect(this._onKernel, this);
    _settings.changed.connect(this._again, this);
    void _panel.context.ready.then(() => {
      if (!this._disposed) {
        _panel.model?.contentChanged.connect(this._onContent, this);
        _panel.model?.cells.changed.connect(this._onCells, this);
        this._onCells();
        this._onKernel();
      }
    });
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    if (!this._disposed) {
      this._disposed = true;
      Signal.clearData(this);
    }
  }

  /** The session notes a new kernel by the same signal, before or after this. */
  private _onKernel(): void {
    queueMicrotask(() => {
      const runs = this._disposed ? null : this._sessions.forPanel(this._panel);
      if (runs !== this._runs && !this._disposed) {
        this._runs?.changed.disconnect(this._refresh, this);
        runs?.changed.connect(this._refresh, this);
        this._runs = runs;
        this._refresh();
      }
    });
  }

  /** Outputs tell of themselves cell by cell. */
  private _onCells(): void {
    // A cell that is gone has no outputs any more.
    this._areas.forEach(area => area.changed.disconnect(this._onOutputs, this));
    this._cells = [...(this._panel.model?.cells ?? [])].filter(isCode);
    this._areas = this._cells.map(cell => cell.outputs);
    this._areas.forEach(area => area.changed.connect(this._onOutputs, this));
    this._onOutputs();
    this._again();
  }

  /** What a cell prints comes here as well, up to many times a second. */
  private _onOutputs(): void {
    this._outputs = this._cells.flatMap(cell => this._outputsOf(cell));
    this._refresh();
  }

  private _outputsOf(cell: ICodeCellModel): ShownRun[] {
    const pages = recordsOf(cell).map(data => (isObject(data) ? this._read(data) : null));
    return pages.flatMap(page => (page === null ? [] : [{ page, cell: cell.id }]));
  }

  private _read(data: object): Page | null {
    let page = this._records.get(data);
    if (page === undefined) {
      const record = readRecord(data, this._trans);
      page = typeof record === 'string' ? null : record.page;
      this._records.set(data, page);
    }
    return page;
  }

  /** Every key that is pressed comes here: only cells that something was told of are looked at. */
  private _onContent(): void {
    const model = this._panel.model;
    const known = new Set(this._memory.ids);
    const cells =
      model === null || known.size === 0 ? [] : [...model.cells].filter(cell => known.has(cell.id));
    const edits = cells.map(cell => this._memory.edited(cell.id, cell.sharedModel.getSource()));
    if (edits.includes(true)) {
      this._again();
    }
  }

  /** A live run tells of steps many times before it tells of another problem. */
  private _refresh(): void {
    const runs = this._shown();
    const checked = this._runs?.checked ?? null;
    const profiled = this._runs?.profiled ?? null;
    const from = [
      checked,
      profiled,
      ...runs.flatMap(({ page, cell }) => [page.id, page.problems, sitesOf(page).size, cell])
    ];
    if (from.length !== this._from.length || from.some((one, at) => one !== this._from[at])) {
      this._from = from;
      this._told = siteProblems(runs, checked, profiled);
      this._again();
    }
  }

  /** The kernel's newest, and those of the outputs, of which one may be that. */
  private _shown(): ShownRun[] {
    const latest = this._runs?.latest ?? null;
    const outputs = this._outputs.map(({ page, cell }) => ({
      page: latest?.id === page.id ? latest : page,
      cell
    }));
    return latest === null ? outputs : [...outputs, { page: latest, cell: '' }];
  }

  private _again(): void {
    const { model } = this._panel;
    if (model === null || this._disposed) {
      return;
    }
    const found = this._memory.badges(this._told, this._told.length > 0 ? cellTexts(model) : []);
    [...model.cells].forEach((cell, index) => {
      const badges = found.get(index);
      if (badges !== undefined || this._touched.has(cell.sharedModel)) {
        this._board.show(cell.sharedModel, (this._settings.values.badges && badges) || NONE);
        this._touched.add(cell.sharedModel);
      }
    });
  }

  private readonly _memory = new Memory();
  private readonly _touched = new WeakSet<object>();
  private readonly _records = new WeakMap<object, Page | null>();
  private _cells: ICodeCellModel[] = [];
  private _areas: ICodeCellModel['outputs'][] = [];
  private _outputs: ShownRun[] = [];
  private _runs: KernelRuns | null = null;
  private _from: readonly unknown[] = [];
  private _told: SiteProblem[] = [];
  private _disposed = false;
}
