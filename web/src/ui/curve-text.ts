/** Curves in words: for the reading above a chart, and for screen readers. */
import { exact, extremes, momentOf, nearest, NO_POINTS, type Marker, type Points } from "../lib/curves";
import { clock, count, duration, plural } from "../lib/format";

/** The axes of the API, with time as Unix milliseconds; `elapsed` is the seconds since the start of each run. */
export type AxisName = "step" | "time" | "samples" | "tokens" | "elapsed";

export interface DrawnCurve {
  /** The run in the reading and the table; empty when there is only one. */
  label: string;
  /** The name of a theme colour, and the lengths of dashes; an empty list is a solid line. */
  colour: string;
  dash: readonly number[];
  points: Points;
  markers?: readonly Marker[];
}

/** A place on the x axis in words. */
export function placeText(axis: AxisName, at: number): string {
  if (axis === "time") return clock(at);
  if (axis === "elapsed") return duration(at * 1000);
  return axis === "step" ? `step ${count(Math.round(at))}` : `${count(Math.round(at))} ${axis}`;
}

/** The last, lowest and highest value of each curve. */
export function summary(name: string, unit: string, curves: readonly DrawnCurve[]): string {
  const texts = curves.map(({ label, points }) => {
    const { last, min, max } = extremes(points);
    const values = last === null ? "no values" : `last ${exact(last)}, lowest ${exact(min)}, highest ${exact(max)}`;
    const wrong = points.not_finite.length > 0 ? `, NaN or infinite at ${plural(points.not_finite.length, "point")}` : "";
    return `${label && `${label}: `}${values}${wrong}`;
  });
  return `${name}${unit && !name.endsWith(`_${unit}`) ? ` in ${unit}` : ""}; ${texts.join("; ")}`;
}

/** The values at a place on the x axis, for the text above the chart and for screen readers. */
export function readingAt(curves: readonly DrawnCurve[], axis: AxisName, at: number): string {
  const texts = curves.map(({ label, points }) => {
    const index = nearest(points.x, at);
    const [low, high] = [points.min[index], points.max[index]];
    const band = low !== high ? ` (${exact(low)} to ${exact(high)})` : "";
    return `${label && `${label} `}${exact(points.mean[index])}${band}`;
  });
  const points = curves[0]?.points ?? NO_POINTS;
  const moment = curves.length === 1 ? momentOf(points, at) : null;
  const parts = [`${placeText(axis, points.x[nearest(points.x, at)] ?? at)}${moment === null || axis === "time" ? "" : ` · ${clock(moment)}`}`, ...texts];
  return parts.join(curves.length === 1 ? " · " : "\n");
}

/** The newest value, while the crosshair is not over the chart. */
export function lastReading(curves: readonly DrawnCurve[]): string {
  return curves.length === 1 ? exact(extremes(curves[0]!.points).last) : "";
}
