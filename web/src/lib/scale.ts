/** Conversion between moments and pixels, zooming, panning, and the ticks of a time axis. */

export interface Span {
  from: number;
  to: number;
}

export function toPixel(span: Span, width: number, at: number): number {
  return span.to === span.from ? 0 : ((at - span.from) / (span.to - span.from)) * width;
}

export function toMoment(span: Span, width: number, pixel: number): number {
  return span.from + (pixel / Math.max(width, 1)) * (span.to - span.from);
}

/** The span zoomed around a moment that keeps its place; within bounds, at least a millisecond long. */
export function zoom(span: Span, factor: number, around: number, bounds: Span): Span {
  const widest = bounds.to - bounds.from;
  const length = Math.min(Math.max((span.to - span.from) * factor, 1), Math.max(widest, 1));
  const share = (around - span.from) / Math.max(span.to - span.from, Number.MIN_VALUE);
  return within({ from: around - length * share, to: around + length * (1 - share) }, bounds);
}

/** The span moved by a share of its length, within bounds. */
export function pan(span: Span, share: number, bounds: Span): Span {
  const shift = (span.to - span.from) * share;
  return within({ from: span.from + shift, to: span.to + shift }, bounds);
}

/** The span moved into the bounds; a longer one becomes the bounds. */
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

/** Round moments about `gap` pixels apart, and the time between them. */
export function ticks(span: Span, width: number, gap = 96): { step: number; at: number[] } {
  const wanted = ((span.to - span.from) / Math.max(width, 1)) * gap;
  const step = STEPS.find((each) => each >= wanted) ?? STEPS[STEPS.length - 1]!;
  const at: number[] = [];
  for (let each = Math.ceil(span.from / step) * step; each <= span.to; each += step) at.push(each);
  return { step, at };
}
