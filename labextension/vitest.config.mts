// How the unit tests run: in jsdom, with JupyterLab's packages as vite reads them (their icons as text, their styles
// left out). The build does not read this.

import { readFileSync } from 'node:fs';
import { defineConfig, type Plugin } from 'vitest/config';

const assets: Plugin = {
  name: 'assets',
  enforce: 'pre',
  load(id) {
    if (id.endsWith('.svg')) {
      return `export default ${JSON.stringify(readFileSync(id, 'utf8'))}`;
    }
    return id.endsWith('.css') ? '' : undefined;
  }
};

export default defineConfig({
  plugins: [assets],
  resolve: { mainFields: ['module', 'main'] },
  test: {
    environment: 'jsdom',
    isolate: false, // one page for all files: a page for each took four times as long
    setupFiles: ['vitest.setup.ts'],
    include: [
      'src/**/*.test.{ts,tsx}',
      'src/**/__tests__/**/*.spec.{ts,tsx}',
      'tests/**/*.{test,spec}.{ts,tsx}'
    ],
    server: { deps: { inline: [/@jupyterlab\//, /@lumino\//, /@jupyter\//] } }
  }
});
