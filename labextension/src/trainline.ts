// The line that "Train on TPU" adds at the top of a cell.
//
// It has the three forms of tpu_magics/launch/cell.py; the cases in __tests__/trainline.json hold both to the same results.

import { closing, split, Statement, statements } from './statements';

/** What a cell is. `form`: 1, a function is trained; 2, it calls a launcher; 3, plain statements; 0, not Python.
 * `name`: of the function; `args`: the ARGs that it needs, one for each parameter that has no default. */
export interface CellReading {
  form: 0 | 1 | 2 | 3;
  name: string;
  args: string[];
}

/** Of the kernel's launchers (launch/cell.py), by canonical name. */
const LAUNCHERS = [
  'accelerate.notebook_launcher',
  'accelerate.launchers.notebook_launcher',
  'torch_xla.distributed.xla_multiprocessing.spawn',
  'torch_xla.launch',
  'torch_xla.torch_xla.launch'
];
/** How these are called where their import is out of sight: the names that everybody gives them. */
const USUAL: { [name: string]: string } = {
  notebook_launcher: 'accelerate.notebook_launcher',
  xmp: 'torch_xla.distributed.xla_multiprocessing'
};
const NAME = '[\\p{L}_][\\p{L}\\p{N}_]*';
const DEF = new RegExp(`^(?:async\\s+)?def\\s+(${NAME})\\s*`, 'u');
const CALL = new RegExp(
  `^(?:${NAME}(?:\\s*,\\s*${NAME})*\\s*=\\s*)*(${NAME}(?:\\.${NAME})*)\\s*\\(`,
  'u'
);
/** Blocks that the kernel looks into for a launching call. */
const TRANSPARENT = /^(?:if|with|try)\b/;

/** Read a cell. `others`: the notebook's other cells, for what they import. */
export function readCell(source: string, others: readonly string[] = []): CellReading {
  const found = statements(source);
  if (found === null) {
    return { form: 0, name: '', args: [] };
  }
  const names = {
    ...USUAL,
    ...importsOf(others.flatMap(other => statements(other) ?? [])),
    ...importsOf(found)
  };
  if (topLevel(found).some(text => isLaunch(text, names))) {
    return { form: 2, name: '', args: [] };
  }
  const last = found.filter(one => one.indent === 0).pop();
  const definition = last && !last.magic ? DEF.exec(last.text) : null;
  if (!last || !definition) {
    return { form: 3, name: '', args: [] };
  }
  return { form: 1, name: definition[1], args: argumentsOf(last.text.slice(definition[0].length)) };
}

/** `%%tpu_train` with the arguments that the cell's function needs. */
export function trainLine(source: string, others: readonly string[] = []): string {
  return ['%%tpu_train', ...readCell(source, others).args].join(' ');
}

/** The cell magic on top, e.g. "%%time", or "". Comments may stand above those of tpu_magics, and only above those. */
export function magicOf(source: string): string {
  const lines = source.split('\n').filter(line => line.trim() !== '');
  const first = lines.find(line => !line.trimStart().startsWith('#')) ?? '';
  const magic = /^%%\w\S*/.exec(first)?.[0] ?? '';
  return first === lines[0] || magic.startsWith('%%tpu_') ? magic : '';
}

// -- parameters --------------------------------------------------------------------------------------------------------

/** `code`: what follows the function's name: (type parameters and) parameters. */
function argumentsOf(code: string): string[] {
  const behindTypes = code.startsWith('[') ? code.slice(closing(code, 0) + 1).trimStart() : code;
  const end = closing(behindTypes, 0);
  const found: string[] = [];
  let named = false;
  for (const parameter of split(behindTypes.slice(1, end), ',')) {
    if (parameter.startsWith('*')) {
      named = true;
    } else if (parameter !== '' && parameter !== '/' && !hasDefault(parameter)) {
      const name = new RegExp(`^${NAME}`, 'u').exec(parameter)?.[0] ?? '';
      found.push(named ? `${name}=${name}` : name);
    }
  }
  return found.filter(name => name !== '');
}

function hasDefault(parameter: string): boolean {
  return /(?<![=!<>:])=(?!=)/.test(outside(parameter));
}

/** Code without what is in brackets. */
function outside(code: string): string {
  let depth = 0;
  return [...code]
    .filter(char => {
      depth += '([{'.includes(char) ? 1 : ')]}'.includes(char) ? -1 : 0;
      return depth === 0;
    })
    .join('');
}

// -- launching calls ---------------------------------------------------------------------------------------------------

/** The simple statements at the top level, also below `if`, `with` and `try`. */
function topLevel(found: readonly Statement[]): string[] {
  const blocks: { indent: number; open: boolean }[] = [];
  const texts: string[] = [];
  for (const one of found) {
    while (blocks.length > 0 && blocks[blocks.length - 1].indent >= one.indent) {
      blocks.pop();
    }
    const [header, suite] = one.magic ? [null, ''] : headerOf(one.text);
    const open = blocks.every(block => block.open);
    if (header !== null && suite === '') {
      blocks.push({ indent: one.indent, open: TRANSPARENT.test(header) });
    } else if (open && (header === null || TRANSPARENT.test(header))) {
      texts.push(...split(suite, ';'));
    }
  }
  return texts;
}

const HEADER = /^(?:if|elif|else|for|while|with|try|except|finally|def|class|async|match|case)\b/;

/** A block's header (null: it is none) and what stands behind its colon. */
function headerOf(text: string): [string | null, string] {
  if (!HEADER.test(text)) {
    return [null, text];
  }
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    depth += '([{'.includes(text[at]) ? 1 : ')]}'.includes(text[at]) ? -1 : 0;
    if (depth === 0 && text[at] === ':' && text[at + 1] !== '=') {
      return [text.slice(0, at), text.slice(at + 1).trim()];
    }
  }
  return [null, text];
}

function isLaunch(text: string, names: { [name: string]: string }): boolean {
  const found = CALL.exec(text);
  if (found === null || closing(text, found[0].length - 1) !== text.length - 1) {
    return false;
  }
  const [first, ...rest] = found[1].split('.');
  return LAUNCHERS.includes([names[first] ?? first, ...rest].join('.'));
}

/** What imports bind, wherever they stand: local name -> canonical name. */
function importsOf(found: readonly Statement[]): { [name: string]: string } {
  const names: { [name: string]: string } = {};
  const simple = found.flatMap(one =>
    one.magic ? [] : split(headerOf(one.text)[1] || one.text, ';')
  );
  for (const text of simple) {
    const from = /^from\s+([\w.]+)\s+import\s+(.*)$/.exec(text);
    const list = from ? from[2].replace(/[()]/g, ' ') : /^import\s+(.*)$/.exec(text)?.[1];
    for (const alias of split(list ?? '', ',')) {
      const [name, local] = alias.split(/\s+as\s+/);
      const top = name.split('.')[0];
      if (from && name !== '' && !from[1].startsWith('.')) {
        names[local ?? name] = `${from[1]}.${name}`;
      } else if (!from && name !== '') {
        names[local ?? top] = local ? name : top;
      }
    }
  }
  return names;
}
