/** The visible span of the timeline, and the span that is loaded for it. */
import { within, type Span } from "../../lib/scale";

export const DEFAULT_MS = 5 * 60_000;

/** The end of the last task; now while a task runs, or without tasks. */
export function lastActivity(ends: (number | null)[], now: number): number {
  return ends.reduce<number>((last, end) => Math.max(last, end ?? now), ends.length ? 0 : now);
}

/** The span without a choice in the address: the minutes around the time cursor, or around the last activity. */
export function defaultSpan(bounds: Span, cursor: number | null, last: number): Span {
  const length = Math.min(DEFAULT_MS, Math.max(bounds.to - bounds.from, 1000));
  if (cursor === null) {
    const to = Math.min(bounds.to, last + length / 2);
    return within({ from: to - length, to }, bounds);
  }
  return within({ from: cursor - length / 2, to: cursor + length / 2 }, bounds);
}

/** The span in the address; null if it has none or an invalid one. */
export function spanFrom(from: string | undefined, to: string | undefined): Span | null {
  const span = { from: Number(from), to: Number(to) };
  return from && to && span.to > span.from ? span : null;
}

/** The part of a span from the time cursor on; all of it when the cursor is outside. */
export function following(span: Span, cursor: number | null): Span {
  return cursor !== null && cursor > span.from && cursor < span.to ? { from: cursor - 1, to: span.to } : span;
}

/** The span with rounded ends, so that a small move needs no new request. */
export function rounded(span: Span): Span {
  const grid = Math.max((span.to - span.from) / 32, 1);
  return { from: Math.floor(span.from / grid) * grid, to: Math.ceil(span.to / grid) * grid };
}

/**
 * A larger span on a coarse grid: panning or zooming a little needs no new request, and going back finds
 * the cached answer.
 */
export function loadedSpan(span: Span): Span {
  const grid = 2 ** Math.ceil(Math.log2(Math.max(span.to - span.from, 2))) / 2;
  return { from: Math.floor(span.from / grid) * grid, to: Math.ceil(span.to / grid) * grid };
}
