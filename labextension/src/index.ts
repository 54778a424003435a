// The extension's plugins.
//
// A service that is not everywhere is optional: Notebook 7 has no status bar.

import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { EditorExtensionRegistry, IEditorExtensionRegistry } from '@jupyterlab/codemirror';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { BadgeBoard, NotebookBadges } from './board';
import { addCommands, Ids } from './commands';
import { tpuIcon } from './icons';
import { isShown, showHere } from './outputs';
import { TpuPanel } from './panel/widget';
import { ITpuSessions, Sessions } from './session';
import { TpuSettings } from './settings';
import { followSites, revealSite } from './sites';
import { addStatus } from './status';

const DOMAIN = 'tpu_magics';
const PANEL = 'tpu-magics-panel';

const sessions: JupyterFrontEndPlugin<ITpuSessions> = {
  id: 'tpu-magics:sessions',
  description: 'Follows the runs of each kernel.',
  autoStart: true,
  requires: [INotebookTracker],
  provides: ITpuSessions,
  activate: (_app: JupyterFrontEnd, tracker: INotebookTracker) => new Sessions(tracker)
};

/** Has the schema's name, so the settings are its own. */
const main: JupyterFrontEndPlugin<void> = {
  id: 'tpu-magics:plugin',
  description: 'The side panel, the status item and the commands of tpu_magics.',
  autoStart: true,
  requires: [INotebookTracker, ITpuSessions],
  optional: [ITranslator, ISettingRegistry, ICommandPalette, IStatusBar, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    runs: ITpuSessions,
    translator: ITranslator | null,
    registry: ISettingRegistry | null,
    palette: ICommandPalette | null,
    statusBar: IStatusBar | null,
    restorer: ILayoutRestorer | null
  ) => {
    const texts = translator ?? nullTranslator;
    const trans = texts.load(DOMAIN);
    const showPanel = (): void => app.shell.activateById(PANEL);
    const execute = (id: string): void => void app.commands.execute(id);

    const panel = new TpuPanel({
      sessions: runs,
      translator: texts,
      onSite: site => revealSite(app.shell, tracker, runs, site),
      onLoadExtension: () => execute(Ids.init),
      onCheck: () => execute(Ids.check),
      onTrain: () => execute(Ids.train),
      onStop: () => execute(Ids.stop),
      isShown: run => tracker.currentWidget === null || isShown(tracker.currentWidget, run),
      onShowHere: page => tracker.currentWidget && showHere(tracker.currentWidget, page)
    });
    panel.id = PANEL;
    panel.title.icon = tpuIcon;
    panel.title.caption = trans.__('TPU runs');
    app.shell.add(panel, 'right', { rank: 900, type: 'TPU' });
    restorer?.add(panel, PANEL);

    addCommands({ commands: app.commands, tracker, sessions: runs, trans, showPanel });
    for (const command of Object.values(Ids)) {
      palette?.addItem({ command, category: trans.__('TPU'), args: { isPalette: true } });
    }
    if (statusBar !== null) {
      addStatus(statusBar, runs, texts, showPanel);
    }
    followSites(tracker);

    // Not before the settings are loaded: the kernel would take the defaults for a query.
    const settings = loaded(registry);
    settings.changed.connect((_, { updateRate }) => runs.setRate(updateRate));
  }
};

const badges: JupyterFrontEndPlugin<void> = {
  id: 'tpu-magics:badges',
  description: 'Badges at the lines of a notebook that recompiled or that break a rule of XLA.',
  autoStart: true,
  requires: [INotebookTracker, ITpuSessions, IEditorExtensionRegistry],
  optional: [ITranslator, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    runs: ITpuSessions,
    editors: IEditorExtensionRegistry,
    translator: ITranslator | null,
    registry: ISettingRegistry | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const settings = loaded(registry);
    const board = new BadgeBoard(trans, () => app.shell.activateById(PANEL));
    editors.addExtension({
      name: badges.id,
      factory: ({ inline, model }) =>
        inline
          ? EditorExtensionRegistry.createImmutableExtension(board.extension(model.sharedModel))
          : null
    });
    const watch = (panel: NotebookPanel): void =>
      void new NotebookBadges(panel, runs, settings, board, trans);
    tracker.forEach(watch);
    tracker.widgetAdded.connect((_, panel) => watch(panel));
  }
};

function loaded(registry: ISettingRegistry | null): TpuSettings {
  const settings = new TpuSettings();
  if (registry !== null) {
    void settings.load(registry, main.id);
  }
  return settings;
}

export default [sessions, main, badges];
