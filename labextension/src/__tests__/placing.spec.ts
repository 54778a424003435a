import { describe, expect, it } from 'vitest';
import { along, room } from '../placing';

const SIGHT = { left: 0, width: 500 };

describe('where a badge goes', () => {
  it('is behind the end of its line', () => {
    expect(along(100, 80, 18, SIGHT)).toEqual({ left: 112, narrow: false });
    expect(along(408, 80, 18, SIGHT)).toEqual({ left: 420, narrow: false });
  });

  it('is narrow where the words have no room', () => {
    expect(along(409, 80, 18, SIGHT)).toEqual({ left: 421, narrow: true });
  });

  it('is at the right edge where the line is longer than what is in sight', () => {
    expect(along(900, 80, 18, SIGHT)).toEqual({ left: 482, narrow: true });
    expect(along(900, 80, 18, { left: 300, width: 500 })).toEqual({ left: 782, narrow: true });
  });

  it('is behind the end again when one has scrolled there', () => {
    expect(along(900, 80, 18, { left: 492, width: 500 })).toEqual({ left: 912, narrow: false });
  });

  it('scrolls away with the end of its line', () => {
    expect(along(100, 80, 18, { left: 300, width: 500 })).toEqual({ left: 112, narrow: false });
  });

  it('begins in sight, however little that is', () => {
    expect(along(900, 80, 18, { left: 300, width: 10 }).left).toBe(300);
  });
});

describe('the width of the content', () => {
  it('is left alone where there is no scrollbar: one would change the height', () => {
    expect(room(450, 80, 500, SIGHT)).toBe(0);
  });

  it('has room for the badge behind the longest line', () => {
    expect(room(900, 80, 900, SIGHT)).toBe(992);
  });
});
