// The badges of a notebook's cells, except of cells that were edited since.

import { CellText, cellFinder, isStill } from './cells';
import { Badge, SiteProblem, worstFirst } from './problems';

/** What is known of a cell that something was told of. `gone`: keys of what was told before its text changed. */
interface Known {
  source: string;
  keys: string[];
  gone: Set<string>;
}

/** Of each cell, by its index: the badges that are left when what was edited is taken away. */
export class Memory {
  badges(told: readonly SiteProblem[], cells: readonly CellText[]): Map<number, Badge[]> {
    const find = cellFinder(cells);
    const found = new Map<number, SiteProblem[]>();
    for (const one of told) {
      const index = find(one.site);
      const others = found.get(index) ?? [];
      found.set(index, others);
      others.push(one);
    }
    found.delete(-1);
    return new Map([...found].map(([index, some]) => [index, this._left(some, cells[index])]));
  }

  /** Notice an edit, before anything new is told. True where there was one. */
  edited(id: string, source: string): boolean {
    const known = this._known.get(id);
    if (known === undefined || known.source === source) {
      return false;
    }
    known.keys.forEach(key => known.gone.add(key));
    known.source = source;
    return true;
  }

  get ids(): Iterable<string> {
    return this._known.keys();
  }

  private _left(told: readonly SiteProblem[], cell: CellText): Badge[] {
    this.edited(cell.id, cell.source);
    const known = this._known.get(cell.id) ?? {
      source: cell.source,
      keys: [],
      gone: new Set<string>()
    };
    this._known.set(cell.id, known);
    known.keys = told.map(one => one.key);
    const texts = cell.source.split('\n');
    const left = told.filter(
      ({ site, key }) => !known.gone.has(key) && isStill(texts[site.line - 1], site.code)
    );
    const lines = [...new Set(left.map(one => one.site.line))].sort((one, other) => one - other);
    return lines.map(line => ({
      line,
      problems: worstFirst(left.filter(one => one.site.line === line))
    }));
  }

  private readonly _known = new Map<string, Known>();
}
