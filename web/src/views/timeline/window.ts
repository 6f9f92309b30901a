/** Which span of time is seen, and which is asked for. */
import { within, type Span } from "../../lib/scale";

export const USUAL_MS = 5 * 60_000;

/** When a task was at work last, by their ends: now while one is, and where there is none. */
export function lastWork(ends: (number | null)[], now: number): number {
  return ends.reduce<number>((last, end) => Math.max(last, end ?? now), ends.length ? 0 : now);
}

/** What is seen when nobody chose: the minutes around the last work, or around the cursor. */
export function usual(bounds: Span, cursor: number | null, last: number): Span {
  const length = Math.min(USUAL_MS, Math.max(bounds.to - bounds.from, 1000));
  if (cursor === null) {
    const to = Math.min(bounds.to, last + length / 2);
    return within({ from: to - length, to }, bounds);
  }
  return within({ from: cursor - length / 2, to: cursor + length / 2 }, bounds);
}

/** What the address says, if that is a span. */
export function chosen(from: string | undefined, to: string | undefined): Span | null {
  const span = { from: Number(from), to: Number(to) };
  return from && to && span.to > span.from ? span : null;
}

/** What of a span follows the cursor, and what happened at it; all of it where the cursor is not in it. */
export function following(span: Span, cursor: number | null): Span {
  return cursor !== null && cursor > span.from && cursor < span.to ? { from: cursor - 1, to: span.to } : span;
}

/** The span with its ends rounded a little, so that a small move asks for nothing new. */
export function rounded(span: Span): Span {
  const grid = Math.max((span.to - span.from) / 32, 1);
  return { from: Math.floor(span.from / grid) * grid, to: Math.ceil(span.to / grid) * grid };
}

/**
 * A somewhat larger span on a coarse grid: panning and zooming a little asks for nothing new, and
 * going back finds the answer that is there.
 */
export function askedFor(span: Span): Span {
  const grid = 2 ** Math.ceil(Math.log2(Math.max(span.to - span.from, 2))) / 2;
  return { from: Math.floor(span.from / grid) * grid, to: Math.ceil(span.to / grid) * grid };
}
