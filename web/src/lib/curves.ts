/** Curves of logged metrics as the charts draw them: smoothing, scales, windows and marks. */
import { toPixel, type Span } from "./scale";
import { byName } from "./text";

export type Value = number | null;

/** The points of one curve. A point stands for a bucket of values when there are more values than pixels. */
export interface Points {
  x: readonly number[];
  mean: readonly Value[];
  min: readonly Value[];
  max: readonly Value[];
  step: readonly number[];
  time_ms: readonly number[];
  /** Where a value was NaN or infinite, in units of x. */
  not_finite: readonly number[];
  /** False when a point stands for several steps. */
  exact?: boolean;
}

export const NO_POINTS: Points = { x: [], mean: [], min: [], max: [], step: [], time_ms: [], not_finite: [] };

/** The exponential moving average, corrected for its start; a missing value stays missing. */
export function smoothed(values: readonly Value[], weight: number): readonly Value[] {
  if (weight <= 0) return values;
  let [sum, share] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

/** The values that a logarithmic scale can show: those above zero. */
export const aboveZero = (values: readonly Value[]): readonly Value[] => values.map((value) => (value !== null && value > 0 ? value : null));

/** Where a logarithmic scale cannot show the value. */
export function belowLog({ x, mean }: Points): number[] {
  return x.filter((_, index) => mean[index] !== null && mean[index]! <= 0);
}

/** The index of the point that is nearest to a place on the x axis; -1 without points. */
export function nearest(x: readonly number[], at: number): number {
  const after = firstAtOrAfter(x, at);
  if (after === 0) return x.length === 0 ? -1 : 0;
  if (after === x.length) return x.length - 1;
  return at - x[after - 1]! <= x[after]! - at ? after - 1 : after;
}

function firstAtOrAfter(sorted: readonly number[], at: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

function firstAfter(sorted: readonly number[], at: number): number {
  const index = firstAtOrAfter(sorted, at);
  return sorted[index] === at ? index + 1 : index;
}

/** The place on the x axis of a step or moment, given that of each point; between two points by their distance. Null outside of all points. */
function placeAmong(x: readonly number[], known: readonly number[], at: number): number | null {
  const after = firstAtOrAfter(known, at);
  if (after === known.length) return null;
  if (known[after] === at) return x[after]!;
  if (after === 0) return null;
  const [before, next] = [known[after - 1]!, known[after]!];
  return x[after - 1]! + ((at - before) / (next - before)) * (x[after]! - x[after - 1]!);
}

/** The place of a moment on the x axis: between the points before and after it; null outside of them. */
export const placeOf = ({ x, time_ms }: Points, atMs: number): number | null => placeAmong(x, time_ms, atMs);

/**
 * The place of a marker: by its step where it has one and the axis counts progress, because an alert about a loss is
 * raised after its step; on an axis of time by its moment. One before or after all points is at their end, unless the
 * points are those of a window.
 */
export function markerPlace({ x, time_ms, step }: Points, marker: Pick<Marker, "at_ms" | "step">, byTime: boolean, windowed: boolean): number | null {
  if (x.length === 0) return null;
  const [known, at] = byTime || marker.step === null ? [time_ms, marker.at_ms] : [step, marker.step];
  if (!windowed && at <= known[0]!) return x[0]!;
  if (!windowed && at >= known[known.length - 1]!) return x[x.length - 1]!;
  return placeAmong(x, known, at);
}

/** The moment of a place on the x axis: that of the nearest point. */
export function momentOf(points: Points, at: number): number | null {
  const index = nearest(points.x, at);
  return index < 0 ? null : points.time_ms[index]!;
}

/** Points with newer ones after them, in buckets as wide as the others; the newer ones replace what they overlap. */
export function extended(before: Points, finer: Points): Points {
  const from = finer.x[0];
  if (from === undefined) return before;
  const kept = firstAtOrAfter(before.x, from);
  const width = before.exact === false && before.x.length > 1 ? (before.x[before.x.length - 1]! - before.x[0]!) / (before.x.length - 1) : 0;
  const newer = width > 0 ? joined(finer, width) : finer;
  const both = <T>(old: readonly T[], next: readonly T[]) => [...old.slice(0, kept), ...next];
  return {
    x: both(before.x, newer.x),
    mean: both(before.mean, newer.mean),
    min: both(before.min, newer.min),
    max: both(before.max, newer.max),
    step: both(before.step, newer.step),
    time_ms: both(before.time_ms, newer.time_ms),
    not_finite: [...before.not_finite.filter((at) => at < from), ...newer.not_finite],
    ...(before.exact !== undefined && { exact: before.exact }),
  };
}

/** Points joined into buckets of a width, so that the newest points look like the older ones beside them. */
export function joined(points: Points, width: number): Points {
  const starts = points.x.flatMap((at, index) => (index === 0 || Math.floor(at / width) !== Math.floor(points.x[index - 1]! / width) ? [index] : []));
  const each = <T>(column: readonly T[], join: (bucket: readonly T[]) => T) => starts.map((start, index) => join(column.slice(start, starts[index + 1])));
  const last = (bucket: readonly number[]) => bucket[bucket.length - 1]!;
  const mean = (bucket: readonly Value[]) => (bucket.includes(null) ? null : bucket.reduce<number>((sum, value) => sum + value!, 0) / bucket.length);
  const ofKnown = (choose: (a: number, b: number) => number) => (bucket: readonly Value[]) => bucket.reduce((a, b) => (a === null ? b : b === null ? a : choose(a, b)), null);
  return {
    x: each(points.x, last),
    mean: each(points.mean, mean),
    min: each(points.min, ofKnown(Math.min)),
    max: each(points.max, ofKnown(Math.max)),
    step: each(points.step, last),
    time_ms: each(points.time_ms, last),
    not_finite: points.not_finite,
  };
}

const MARGIN = 0.06;

/** The points in a window. */
export function within(points: Points, window: Span | null): Points {
  if (!window) return points;
  const [first, end] = [firstAtOrAfter(points.x, window.from), firstAfter(points.x, window.to)];
  const cut = <T>(column: readonly T[]) => column.slice(first, end);
  return {
    x: cut(points.x),
    mean: cut(points.mean),
    min: cut(points.min),
    max: cut(points.max),
    step: cut(points.step),
    time_ms: cut(points.time_ms),
    not_finite: points.not_finite.filter((at) => at >= window.from && at <= window.to),
  };
}

/** A window with half as much on both sides, so that moving it a little shows what is already loaded. */
export const padded = ({ from, to }: Span): Span => ({ from: from - (to - from) / 2, to: to + (to - from) / 2 });

/** The y range of the points in a window, with a margin; null without a value to show. */
export function yRange(curves: readonly Points[], window: Span | null, log: boolean): [number, number] | null {
  let [low, high] = [Infinity, -Infinity];
  for (const { x, min, max } of curves) {
    const end = window ? firstAfter(x, window.to) : x.length;
    for (let index = window ? firstAtOrAfter(x, window.from) : 0; index < end; index += 1) {
      for (const value of [min[index], max[index]]) {
        if (value === null || value === undefined || (log && value <= 0)) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
  }
  if (low > high) return null;
  if (log) return [low / 10 ** MARGIN, high * 10 ** MARGIN];
  const margin = (high - low) * MARGIN || Math.abs(high) * MARGIN || 1;
  return [low - margin, high + margin];
}

/** The range of x of all curves; null without points. */
export function xRange(curves: readonly Points[]): Span | null {
  const ends = curves.flatMap(({ x }) => (x.length > 0 ? [x[0]!, x[x.length - 1]!] : []));
  return ends.length > 0 ? { from: Math.min(...ends), to: Math.max(...ends) } : null;
}

export interface Marker {
  at_ms: number;
  /** The step that it is about; null if none is known. */
  step: number | null;
  kind: string;
  text: string;
  ref: string;
}

/** A marker at its place on the x axis, with the number of its curve. */
export interface PlacedMarker {
  x: number;
  curve: number;
  marker: Marker;
}

/** Markers that are drawn as one, because they are closer than a mark is wide. */
export interface MarkerGroup {
  px: number;
  placed: readonly PlacedMarker[];
}

/** Marks of markers on the x axis, at least `gap` pixels apart; those outside of the window are left out. */
export function markerGroups(placed: readonly PlacedMarker[], window: Span, width: number, gap = 16): MarkerGroup[] {
  const groups: { px: number; placed: PlacedMarker[] }[] = [];
  for (const each of placed.toSorted((a, b) => a.x - b.x)) {
    if (each.x < window.from || each.x > window.to) continue;
    const px = toPixel(window, width, each.x);
    const last = groups[groups.length - 1];
    if (last && px - last.px < gap) last.placed.push(each);
    else groups.push({ px, placed: [each] });
  }
  return groups;
}

/** The last, lowest and highest value. */
export function extremes({ mean, min, max }: Points): { last: Value; min: Value; max: Value } {
  const known = (values: readonly Value[]) => values.filter((value) => value !== null);
  const [lows, highs] = [known(min), known(max)];
  return {
    last: known(mean).at(-1) ?? null,
    min: lows.length > 0 ? lows.reduce((a, b) => Math.min(a, b)) : null,
    max: highs.length > 0 ? highs.reduce((a, b) => Math.max(a, b)) : null,
  };
}

/** A value with enough digits to compare two values of one curve. */
export function exact(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e7) ? value.toExponential(4) : String(Number(value.toPrecision(6)));
}

interface Named {
  name: string;
  source: "logged" | "derived";
}

/** The order of charts: the loss, other losses, what was logged by name, derived rates, other derived curves. */
export function inOrder<Curve extends Named>(curves: readonly Curve[]): Curve[] {
  const rank = ({ name, source }: Named) => {
    if (source === "derived") return name.endsWith("/s") ? 3 : 4;
    return name === "loss" ? 0 : /loss/i.test(name) ? 1 : 2;
  };
  return curves.toSorted((a, b) => rank(a) - rank(b) || (a.source === "logged" ? byName(a.name, b.name) : 0));
}

/** A window in the address: "120..340". */
export function windowFrom(text: string): Span | null {
  const [from, to] = text.split("..").map(Number);
  return from !== undefined && to !== undefined && to > from ? { from, to } : null;
}

export const windowText = (window: Span | null): string => (window ? `${short(window.from)}..${short(window.to)}` : "");

const short = (value: number) => String(Number(value.toPrecision(10)));
