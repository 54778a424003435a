// Python source as a list of statements, as far as a front end has to know it.
//
// It is no parser: what Python itself refuses may pass here.

/** A logical line. `text`: one line, comments gone, each string literal is ''; `magic`: a line of IPython's. */
export interface Statement {
  indent: number;
  text: string;
  magic: boolean;
}

const OPEN = '([{';
const CLOSE = ')]}';
const TAB = 8;
/** `%magic`, `!command`, `name = %magic`, `name = !command`. */
const MAGIC = /^(?:[%!?]|[\w.,\s[\]]+=\s*(?:%\w|!))/;

/** The statements of a cell, or null where a string or a bracket never ends. */
export function statements(source: string): Statement[] | null {
  return new Scanner(dedented(source)).read();
}

/** IPython takes the first line's indentation from all lines. */
function dedented(source: string): string {
  const lines = source.split(/\r\n|\r|\n/);
  const first = lines.find(line => line.trim() !== '') ?? '';
  const indent = first.slice(0, first.length - first.trimStart().length);
  return lines.map(line => (line.startsWith(indent) ? line.slice(indent.length) : line)).join('\n');
}

class Scanner {
  constructor(private readonly _source: string) {}

  read(): Statement[] | null {
    const found: Statement[] = [];
    while (this._at < this._source.length) {
      const indent = this._indent();
      const statement = this._isMagic() ? this._magic(indent) : this._statement(indent);
      if (statement === null) {
        return null;
      }
      if (statement.text !== '') {
        found.push(statement);
      }
    }
    return found;
  }

  private _indent(): number {
    let width = 0;
    for (; ' \t\f'.includes(this._source.charAt(this._at) || '-'); this._at++) {
      const char = this._source[this._at];
      width = char === '\t' ? (Math.floor(width / TAB) + 1) * TAB : char === '\f' ? 0 : width + 1;
    }
    return width;
  }

  private _isMagic(): boolean {
    const end = this._source.indexOf('\n', this._at);
    return MAGIC.test(this._source.slice(this._at, end < 0 ? undefined : end));
  }

  private _magic(indent: number): Statement {
    const rest = this._source.slice(this._at);
    const text = /^(?:\\\n|[^\n])*/.exec(rest)?.[0] ?? '';
    this._at += text.length + 1;
    return { indent, text, magic: true };
  }

  /** Up to the line end that is in no bracket and no string. */
  private _statement(indent: number): Statement | null {
    let text = '';
    let depth = 0;
    while (this._at < this._source.length) {
      const char = this._source[this._at];
      if (char === '\n' && depth <= 0) {
        this._at++;
        return { indent, text: text.trim(), magic: false };
      }
      if (char === '#') {
        this._skipComment();
      } else if (char === '"' || char === "'") {
        if (!this._skipString(char)) {
          return null;
        }
        text = `${text.replace(/(?<![\w.])[rbfutRBFUT]{1,2}$/, '')}''`;
      } else {
        depth += OPEN.includes(char) ? 1 : CLOSE.includes(char) ? -1 : 0;
        text += this._plain(char);
      }
    }
    return depth > 0 ? null : { indent, text: text.trim(), magic: false };
  }

  /** A character of code; a line that goes on (in a bracket, or behind a backslash) is one line with the next. */
  private _plain(char: string): string {
    const joined = char === '\\' && this._source[this._at + 1] === '\n';
    this._at += joined ? 2 : 1;
    return joined || char === '\n' ? ' ' : char;
  }

  private _skipComment(): void {
    const end = this._source.indexOf('\n', this._at);
    this._at = end < 0 ? this._source.length : end;
  }

  /** Past the string that begins here; false where it never ends. */
  private _skipString(quote: string): boolean {
    const triple = quote.repeat(3);
    const long = this._source.startsWith(triple, this._at);
    const end = long ? triple : quote;
    for (this._at += end.length; this._at < this._source.length; this._at++) {
      const char = this._source[this._at];
      if (char === '\\') {
        this._at++;
      } else if (this._source.startsWith(end, this._at)) {
        this._at += end.length;
        return true;
      } else if (char === '\n' && !long) {
        return false;
      }
    }
    return false;
  }

  private _at = 0;
}

/** The parts of code between separators that are in no bracket and in no lambda's own parameters. */
export function split(code: string, separator: ',' | ';'): string[] {
  const parts: string[] = [];
  let depth = 0;
  let lambdas = 0;
  let from = 0;
  for (let at = 0; at < code.length; at++) {
    const char = code[at];
    depth += OPEN.includes(char) ? 1 : CLOSE.includes(char) ? -1 : 0;
    if (depth > 0) {
      continue;
    }
    if (/^lambda\b/.test(code.slice(at, at + 7)) && !/\w/.test(code[at - 1] ?? '')) {
      lambdas++;
    } else if (char === ':' && lambdas > 0) {
      lambdas--;
    } else if (char === separator && lambdas === 0) {
      parts.push(code.slice(from, at));
      from = at + 1;
    }
  }
  return [...parts, code.slice(from)].map(part => part.trim());
}

/** Where the bracket that opens at `open` closes; -1 where it does not. */
export function closing(code: string, open: number): number {
  let depth = 0;
  for (let at = open; at < code.length; at++) {
    depth += OPEN.includes(code[at]) ? 1 : CLOSE.includes(code[at]) ? -1 : 0;
    if (depth === 0) {
      return at;
    }
  }
  return -1;
}
