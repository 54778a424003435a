// Marks a line for a moment, so that it is easy to see.

import { StateEffect, StateField } from '@codemirror/state';
import { Decoration, DecorationSet, EditorView } from '@codemirror/view';

/** Milliseconds; the style's animation takes as long. */
export const MARKED_FOR = 2500;

const setMark = StateEffect.define<number | null>();
const line = Decoration.line({ class: 'jp-tpu-marked-line' });

const marks = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (found, transaction) => {
    for (const effect of transaction.effects) {
      if (effect.is(setMark)) {
        return effect.value === null ? Decoration.none : Decoration.set([line.range(effect.value)]);
      }
    }
    return found.map(transaction.changes);
  },
  provide: field => EditorView.decorations.from(field)
});

/** Mark the line that begins at `from`. */
export function mark(view: EditorView, from: number): void {
  const known = view.state.field(marks, false) !== undefined;
  view.dispatch({
    effects: known
      ? setMark.of(from)
      : [StateEffect.appendConfig.of(marks.init(() => Decoration.set([line.range(from)])))]
  });
  const own = view.state.field(marks);
  setTimeout(() => {
    // A line that was marked meanwhile has its own time.
    if (view.dom.isConnected && view.state.field(marks, false) === own) {
      view.dispatch({ effects: setMark.of(null) });
    }
  }, MARKED_FOR);
}
