// The current notebook, and what the commands do with it.

import { Notification } from '@jupyterlab/apputils';
import { Cell } from '@jupyterlab/cells';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Refusal, TRAIN, initCell, putPreflight, putTrainLine } from './actions';
import { checkedCells } from './cells';
import { KernelRuns } from './model';
import { isBroken } from './problems';
import { ITpuSessions } from './session';
import { stopRun } from './stopping';
import { FindingsMessage } from './types';
import { otherVersion } from './validate';

/** In which languages a notebook can be meant for us; one that has run nothing yet names none. */
const LANGUAGES = ['', 'python', 'ipython'];
/** Milliseconds that a message stays. */
const READ = 8000;

export interface CommandContext {
  commands: CommandRegistry;
  tracker: INotebookTracker;
  sessions: ITpuSessions;
  trans: TranslationBundle;
  showPanel: () => void;
}

/** The notebook in front, and what is done to it. */
export class Notebooks {
  constructor(private readonly _context: CommandContext) {}

  get panel(): NotebookPanel | null {
    return this._context.tracker.currentWidget;
  }

  get cell(): Cell | null {
    return this.panel?.content.activeCell ?? null;
  }

  get isPython(): boolean {
    const language = this.panel?.content.model?.defaultKernelLanguage;
    return language !== undefined && LANGUAGES.includes(language.toLowerCase());
  }

  async init(): Promise<void> {
    if (this.panel !== null) {
      initCell(this.panel.content);
      await this._context.commands.execute('notebook:run-cell');
    }
  }

  /** The line is worth nothing without the extension: where the kernel has not loaded it, that comes first. */
  async train(): Promise<void> {
    const { panel, cell } = this;
    if (panel === null || cell === null) {
      return;
    }
    const refused = putTrainLine(panel.content, cell);
    if (refused !== null && refused !== 'there') {
      return this._say(this._refusal(refused));
    }
    const runs = this._runs();
    if (runs?.connection !== 'connected' && !runs?.mismatch) {
      await this.init();
      panel.content.activeCellIndex = panel.content.widgets.indexOf(cell);
    } else if (refused === 'there') {
      this._say(this._refusal(refused));
    }
  }

  preflight(): void {
    if (this.panel !== null && this.cell !== null) {
      putPreflight(this.panel.content, this.cell);
    }
  }

  check(): void {
    const { trans } = this._context;
    const runs = this._runs();
    const model = this.panel?.model;
    if (runs?.connection === 'connected' && model) {
      this._sayFound(runs);
      runs.check(checkedCells(model));
      if (runs.deaf) {
        this._say(
          trans.__('The kernel is busy. The check starts when the running cell has ended.')
        );
      }
      this._context.showPanel();
    } else if (runs?.mismatch) {
      this._say(otherVersion(runs.mismatch, trans));
    } else {
      this._sayNotLoaded(runs);
    }
  }

  async stop(): Promise<void> {
    const { sessions, trans } = this._context;
    const runs = sessions.current;
    if (runs !== null && (await stopRun(runs)) === 'unanswered') {
      this._say(
        trans.__(
          'The kernel did not answer. The run stops when the running cell has ended. To end the cell now, interrupt the kernel.'
        )
      );
    }
  }

  private _say(text: string): void {
    Notification.warning(text, { autoClose: READ });
  }

  /** How many, when the answer to a check comes: what was found may be out of sight. Of several checks that are asked for
   * each has its own answer. */
  private _sayFound(runs: KernelRuns): void {
    if (!this._answers.has(runs)) {
      this._answers.set(runs, runs.askedFor);
      runs.changed.connect(this._onChanged, this);
    }
  }

  private _onChanged(runs: KernelRuns): void {
    const checked = runs.askedFor;
    if (checked === this._answers.get(runs)) {
      return;
    }
    this._answers.set(runs, checked);
    if (checked !== null) {
      const { trans } = this._context;
      const broken = checked.findings.filter(isBroken).length;
      const said =
        broken === 0
          ? trans.__('No broken rule')
          : trans._n('%1 broken rule', '%1 broken rules', broken);
      Notification.emit(said, broken === 0 ? 'success' : 'warning', { autoClose: READ });
    }
  }

  private _runs(): KernelRuns | null {
    return this.panel === null ? null : this._context.sessions.forPanel(this.panel);
  }

  /** The check is made by the kernel. */
  private _sayNotLoaded(runs: KernelRuns | null): void {
    const { trans } = this._context;
    const [said, label] =
      runs === null
        ? [
            trans.__(
              'The check needs a kernel with tpu_magics loaded. This notebook has no kernel.'
            ),
            trans.__('Start and load')
          ]
        : [
            trans.__(
              'This kernel has not loaded tpu_magics. Run %1 in a cell.',
              '%load_ext tpu_magics'
            ),
            trans.__('Load it')
          ];
    Notification.info(said, {
      autoClose: READ,
      actions: [{ label, displayType: 'accent', callback: () => void this.init() }]
    });
  }

  private _refusal(refused: Refusal): string {
    const { trans } = this._context;
    switch (refused) {
      case 'there':
        return trans.__('This cell already begins with %1. Run it to train.', TRAIN);
      case 'no-code':
        return trans.__('This is not a code cell. Select the cell with the training function.');
      case 'read-only':
        return trans.__('This cell is read-only.');
      default:
        return trans.__(
          'This cell begins with %1, and a cell can have only one cell magic. Remove it first.',
          refused
        );
    }
  }

  /** Of each kernel that was asked for a check, the answer that was told last. */
  private readonly _answers = new WeakMap<KernelRuns, FindingsMessage | null>();
}
