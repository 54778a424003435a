// The extension's icons. Those of commands follow JupyterLab's theme by its class `jp-icon3`; those of badges take the
// colour of the text around them.

import { LabIcon } from '@jupyterlab/ui-components';

const icon = (name: string, drawing: string): LabIcon =>
  new LabIcon({
    name: `tpu-magics:${name}`,
    svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 16 16">${drawing}</svg>`
  });

const themed = (name: string, path: string): LabIcon =>
  icon(name, `<path class="jp-icon3" fill="#616161" fill-rule="evenodd" d="${path}"/>`);

const plain = (name: string, path: string): LabIcon =>
  icon(name, `<path fill="currentColor" fill-rule="evenodd" d="${path}"/>`);

/** The frame of a chip with its pins, without what is on it. */
const CHIP =
  'M5 1h1v2h1.5V1h1v2H10V1h1v2a2 2 0 0 1 2 2h2v1h-2v1.5h2v1h-2V10h2v1h-2a2 2 0 0 1-2 2v2h-1v-2H8.5v2h-1v-2H6v2H5v-2' +
  'a2 2 0 0 1-2-2H1v-1h2V8.5H1v-1h2V6H1V5h2a2 2 0 0 1 2-2zM5 4.2a.8.8 0 0 0-.8.8v6c0 .44.36.8.8.8h6a.8.8 0 0 0 .8-.8' +
  'V5a.8.8 0 0 0-.8-.8z';

export const tpuIcon = themed('tpu', `${CHIP}M6 6h4v4H6z`);
export const trainIcon = themed('train', `${CHIP}M6.4 5.4v5.2L10.8 8z`);
export const checkIcon = themed('check', `${CHIP}M7.4 10.8 4.9 8.3l.9-.9 1.6 1.6 2.9-3.3.9.8z`);

/** Two arrows in a circle: again. */
export const recompileIcon = plain(
  'recompile',
  'M8 2a6 6 0 0 1 4.9 2.5V2.2h1.4v5H9.4V5.8h2.7A4.6 4.6 0 0 0 3.5 7.2H2.1A6 6 0 0 1 8 2zM1.7 8.8h4.9v1.4H3.9' +
    'a4.6 4.6 0 0 0 8.6-1.4h1.4a6 6 0 0 1-10.8 2.7v2.3H1.7z'
);
/** A triangle with an exclamation mark: it costs time, or it failed. */
export const warningIcon = plain(
  'warning',
  'M8 1.2 15.4 14.4H.6zM8 4.1 3 13h10zM7.3 6.9h1.4v3.2H7.3zM7.3 10.9h1.4v1.3H7.3z'
);
/** An i in a circle: information. */
export const infoIcon = plain(
  'info',
  'M8 1.4a6.6 6.6 0 1 1 0 13.2A6.6 6.6 0 0 1 8 1.4zM8 2.8a5.2 5.2 0 1 0 0 10.4A5.2 5.2 0 0 0 8 2.8zM7.3 4.5h1.4V6H7.3z' +
    'M7.3 7h1.4v4.5H7.3z'
);
