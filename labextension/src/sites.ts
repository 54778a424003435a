// From a line that a record names to that line in a notebook on the screen.

import { JupyterFrontEnd } from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Place, cellFinder, cellTexts, reveal } from './cells';
import { Reach, SITE_EVENT, SiteRequest } from './reveal';
import { ITpuSessions } from './session';
import { Site } from './types';

/** Bring a line into sight, in a notebook of the kernel that is looked at. */
export function revealSite(
  shell: JupyterFrontEnd.IShell,
  tracker: INotebookTracker,
  sessions: ITpuSessions,
  site: Site
): Reach {
  const panel = panelOf(tracker, sessions.current?.kernelId ?? '', site);
  if (panel === null) {
    return 'nothing';
  }
  shell.activateById(panel.id);
  return reveal(panel, site);
}

/** Bring lines into sight that are clicked in outputs, which know of no notebook; they are told what came of it. */
export function followSites(tracker: INotebookTracker): void {
  document.addEventListener(SITE_EVENT, event => {
    const at = event.target instanceof Node ? event.target : null;
    const panel = tracker.find(one => one.node.contains(at));
    const { detail } = event as CustomEvent<SiteRequest>;
    if (panel) {
      detail.reach = reveal(panel, detail.site);
    }
  });
}

/** The notebook of a kernel that has the place's cell; the one in front, if it has. */
function panelOf(tracker: INotebookTracker, kernelId: string, place: Place): NotebookPanel | null {
  const front = tracker.currentWidget;
  const panels = [...(front ? [front] : []), ...tracker.filter(panel => panel !== front)];
  const has = (panel: NotebookPanel): boolean =>
    panel.sessionContext.session?.kernel?.id === kernelId &&
    panel.model !== null &&
    cellFinder(cellTexts(panel.model))(place) >= 0;
  return panels.find(has) ?? null;
}
