// Where along its line a badge is drawn.

/** Pixels between a line's end and its badge. */
const GAP = 12;

/** What part of the content is in sight. */
export interface Sight {
  left: number;
  width: number;
}

/** Where the badge of a line goes that ends at `end`.
 *
 * Behind the line's end, where there is room. Else it is narrowed to its icon (`narrow` pixels) at the right edge of what
 * is in sight, and covers less of the text there than its words (`wide` pixels) would. */
export function along(
  end: number,
  wide: number,
  narrow: number,
  sight: Sight
): { left: number; narrow: boolean } {
  const right = sight.left + sight.width;
  const left = end + GAP;
  if (left + wide <= right) {
    return { left, narrow: false };
  }
  return { left: Math.max(sight.left, Math.min(left, right - narrow)), narrow: true };
}

/** How wide the content has to be for the badge with its words; 0: it takes what there is.
 *
 * Only where the text is wider than the editor already: more of it changes no height then, as there is a scrollbar, and
 * without it the last of a long line could not be read. */
export function room(end: number, wide: number, content: number, sight: Sight): number {
  return content > sight.width ? end + GAP + wide : 0;
}
