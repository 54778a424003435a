// What comes before each build: no compiled file of the build before, and what JupyterLab shares with us, for
// build-labextension's --core-path. Every package under "dependencies" in package.json is JupyterLab's own and is never
// bundled. JupyterLab's own list would demand the version that it was read from; this one demands the oldest that we
// work with.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';

rmSync('lib', { recursive: true, force: true });

const { dependencies } = JSON.parse(readFileSync('package.json', 'utf8'));
const core = { dependencies, jupyterlab: { singletonPackages: Object.keys(dependencies) } };
mkdirSync('build/core', { recursive: true });
writeFileSync('build/core/package.json', JSON.stringify(core, null, 2));
