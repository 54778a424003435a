// How an output of a cell asks for a line of its notebook.

import { Site } from './types';

/** A DOM event with a `SiteRequest`; it bubbles to the notebook. */
export const SITE_EVENT = 'tpu-magics:site';

/** What could be shown of a site: its line; its cell, whose text has changed; nothing, as no notebook has it. */
export type Reach = 'line' | 'cell' | 'nothing';

/** Who shows the site sets `reach`. */
export interface SiteRequest {
  site: Site;
  reach: Reach;
}
