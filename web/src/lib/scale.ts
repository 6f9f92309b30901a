/** Where a moment lies on a canvas, and where to put the marks of an axis. */

export interface Span {
  from: number;
  to: number;
}

/** From a moment to a pixel. */
export function toPixel(span: Span, width: number, at: number): number {
  return span.to === span.from ? 0 : ((at - span.from) / (span.to - span.from)) * width;
}

/** From a pixel to a moment. */
export function toMoment(span: Span, width: number, pixel: number): number {
  return span.from + (pixel / Math.max(width, 1)) * (span.to - span.from);
}

/** Zooms around a moment, which stays where it is; within bounds, and never below a millisecond. */
export function zoom(span: Span, factor: number, around: number, bounds: Span): Span {
  const widest = bounds.to - bounds.from;
  const length = Math.min(Math.max((span.to - span.from) * factor, 1), Math.max(widest, 1));
  const share = (around - span.from) / Math.max(span.to - span.from, Number.MIN_VALUE);
  return within({ from: around - length * share, to: around + length * (1 - share) }, bounds);
}

/** Moves by a share of what is seen. */
export function pan(span: Span, share: number, bounds: Span): Span {
  const shift = (span.to - span.from) * share;
  return within({ from: span.from + shift, to: span.to + shift }, bounds);
}

/** The span moved so that it lies within bounds; one that is longer becomes the bounds. */
export function within(span: Span, bounds: Span): Span {
  const length = span.to - span.from;
  if (length >= bounds.to - bounds.from) return { ...bounds };
  const from = Math.min(Math.max(span.from, bounds.from), bounds.to - length);
  return { from, to: from + length };
}

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500,
  SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND,
  MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR, 48 * HOUR, 168 * HOUR,
];

/** Round moments about `gap` pixels apart, and how far they are from each other. */
export function ticks(span: Span, width: number, gap = 96): { step: number; at: number[] } {
  const wanted = ((span.to - span.from) / Math.max(width, 1)) * gap;
  const step = STEPS.find((each) => each >= wanted) ?? STEPS[STEPS.length - 1]!;
  const at: number[] = [];
  for (let each = Math.ceil(span.from / step) * step; each <= span.to; each += step) at.push(each);
  return { step, at };
}
