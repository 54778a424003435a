// The commands: what the palette, the menu, the toolbar and the keyboard offer.

import { LabIcon, stopIcon } from '@jupyterlab/ui-components';
import { TRAIN } from './actions';
import { checkIcon, tpuIcon, trainIcon } from './icons';
import { KernelRuns } from './model';
import { CommandContext, Notebooks } from './notebooks';

export const Ids = {
  init: 'tpu-magics:init',
  train: 'tpu-magics:train',
  check: 'tpu-magics:check',
  panel: 'tpu-magics:panel',
  stop: 'tpu-magics:stop',
  preflight: 'tpu-magics:preflight'
} as const;

interface Described {
  label: string;
  caption: string;
  icon?: LabIcon;
  enabled: () => boolean;
  visible?: () => boolean;
  run: () => unknown;
}

export function addCommands(context: CommandContext): void {
  const notebook = new Notebooks(context);
  for (const [id, one] of Object.entries(described(context, notebook))) {
    context.commands.addCommand(id, {
      label: one.label,
      caption: one.caption,
      icon: args => (args.isPalette ? undefined : one.icon),
      isEnabled: one.enabled,
      isVisible: one.visible ?? (() => notebook.isPython),
      execute: one.run
    });
  }
  followState(context);
}

function described(
  { trans, sessions, showPanel }: CommandContext,
  on: Notebooks
): { [id: string]: Described } {
  const hasCell = (): boolean => on.isPython && on.cell !== null;
  return {
    [Ids.init]: {
      label: trans.__('Load and Initialize TPU'),
      caption: trans.__(
        'Insert and run a cell with %1 and %2',
        '%load_ext tpu_magics',
        '%tpu_init'
      ),
      icon: tpuIcon,
      enabled: () => on.isPython,
      run: () => on.init()
    },
    [Ids.train]: {
      label: trans.__('Train on TPU'),
      caption: trans.__(
        'Add %1 with the arguments of the function at the top of the selected cell',
        TRAIN
      ),
      icon: trainIcon,
      enabled: hasCell,
      run: () => on.train()
    },
    [Ids.check]: {
      label: trans.__('Check for XLA rules'),
      caption: trans.__('Check the code of this notebook against the rules of XLA; nothing is run'),
      icon: checkIcon,
      enabled: () => on.isPython,
      run: () => on.check()
    },
    [Ids.panel]: {
      label: trans.__('Show TPU Panel'),
      caption: trans.__('Show the run of this notebook, its compiles and earlier runs'),
      icon: tpuIcon,
      enabled: () => true,
      visible: () => true,
      run: showPanel
    },
    [Ids.stop]: {
      label: trans.__('Stop TPU Run'),
      caption: trans.__('Stop the run of this kernel; its records are kept'),
      icon: stopIcon,
      enabled: () => sessions.current?.live === true,
      visible: () => true,
      run: () => on.stop()
    },
    [Ids.preflight]: {
      label: trans.__('Insert TPU Preflight'),
      caption: trans.__(
        'Insert a cell that compiles the selected function for a TPU that is not attached; it is not run'
      ),
      enabled: hasCell,
      run: () => on.preflight()
    }
  };
}

/** Toolbars and menus ask again whether commands can be used. */
function followState({ commands, tracker, sessions }: CommandContext): void {
  const again = (): void => {
    for (const id of Object.values(Ids)) {
      commands.notifyCommandChanged(id);
    }
  };
  let seen: KernelRuns | null = null;
  let live = false;
  const onRuns = (): void => {
    if (live !== (sessions.current?.live === true)) {
      live = !live;
      commands.notifyCommandChanged(Ids.stop);
    }
  };
  const onCurrent = (): void => {
    seen?.changed.disconnect(onRuns);
    seen = sessions.current;
    seen?.changed.connect(onRuns);
    live = seen?.live === true;
    again();
  };
  tracker.activeCellChanged.connect(again);
  tracker.currentChanged.connect(again);
  sessions.currentChanged.connect(onCurrent);
  onCurrent();
}
