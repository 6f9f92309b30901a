/** How uPlot draws curves: columns, scales, bands, and the marks that are drawn over them. */
import uPlot from "uplot";
import { faded } from "../lib/canvas";
import { aboveZero, belowLog, placeOf, smoothed, within, yRange, type PlacedMarker } from "../lib/curves";
import { compact, duration } from "../lib/format";
import type { Span } from "../lib/scale";
import type { CurveChartProps } from "./curve-chart";
import { timeLabels } from "./chart";
import { lastReading, readingAt, type AxisName, type DrawnCurve } from "./curve-text";

/** The newest properties of a chart, which uPlot reads whenever it draws. */
export type Latest = React.RefObject<{ props: CurveChartProps; data: uPlot.AlignedData; range: Span | null; placed: readonly PlacedMarker[] }>;

const FONT = '11px "Inter", system-ui, sans-serif';
const MIN_DRAG_PX = 6;
/** The columns of each curve: the line, the values behind a smoothed line, the ends of the band. */
const COLUMNS = 4;
const SHARED = uPlot.sync("curves");

/** The columns of all curves over one x column. */
export function columnsOf(curves: readonly DrawnCurve[], smoothing: number, log: boolean): uPlot.AlignedData {
  const fit = log ? aboveZero : (values: DrawnCurve["points"]["mean"]) => values;
  const tables = curves.map(({ points }) => [points.x, fit(smoothed(points.mean, smoothing)), fit(points.mean), fit(points.min), fit(points.max)]);
  if (tables.length === 0) return [[]];
  return (tables.length === 1 ? tables[0] : uPlot.join(tables as unknown as uPlot.AlignedData[])) as unknown as uPlot.AlignedData;
}

interface Given {
  latest: Latest;
  width: number;
  height: number;
  inks: Record<string, string>;
  onReading: (text: string) => void;
}

export function curveOptions({ latest, width, height, inks, onReading }: Given): uPlot.Options {
  const { curves, axis, log } = latest.current.props;
  const look = { stroke: inks.faint!, font: FONT, ticks: { show: false }, grid: { stroke: inks.line!, width: 1 } };
  return {
    width,
    height,
    ms: 1,
    padding: [8, 14, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: SHARED.key, scales: ["x", null], setSeries: false },
      y: false,
      points: { size: 6 },
      drag: { x: true, y: false, setScale: false, dist: MIN_DRAG_PX },
    },
    scales: {
      x: { time: axis === "time", range: () => shownRange(latest) },
      y: { distr: log ? 3 : 1, range: () => yRange(latest.current.props.curves.map(({ points }) => points), latest.current.props.window, log) ?? [0.1, 1] },
    },
    axes: [
      { ...look, size: 24, space: 70, grid: { show: false }, values: (_, at) => placeLabels(axis, at) },
      { ...look, size: 52, space: log ? 20 : 32, values: (_, at) => at.map((each) => (each === null ? "" : tick(each))) },
    ],
    series: [{}, ...curves.flatMap(({ colour, dash }) => seriesOf(inks[colour]!, [...dash], latest.current.props.smoothing > 0))],
    bands: curves.map(({ colour }, index) => ({ series: [index * COLUMNS + 4, index * COLUMNS + 3] as [number, number], fill: faded(inks[colour]!, 0.16) })),
    hooks: {
      setCursor: [(plot) => onReading(readingUnder(plot, latest))],
      setSelect: [(plot) => select(plot, latest)],
      draw: [(plot) => drawMarks(plot, latest, inks)],
    },
  };
}

function placeLabels(axis: AxisName, at: readonly number[]): string[] {
  if (axis === "time") return timeLabels(at);
  return at.map((each) => (axis === "elapsed" ? duration(each * 1000) : compact(each)));
}

function tick(value: number): string {
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(0) : compact(value);
}

function seriesOf(ink: string, dash: number[], behind: boolean): uPlot.Series[] {
  const bare = { points: { show: false }, stroke: "transparent", width: 0 };
  return [
    { stroke: ink, width: 1.5, dash, points: { show: (plot: uPlot, index: number) => isSparse(plot, index), size: 4, fill: ink } },
    { stroke: faded(ink, 0.35), width: 1, show: behind, points: { show: false } },
    bare,
    bare,
  ].map((series) => ({ spanGaps: false, ...series }));
}

const SPARSE = 3;

/** Few points are drawn as dots too: a single point has no line. */
function isSparse(plot: uPlot, series: number): boolean {
  const values = plot.data[series] ?? [];
  return values.filter((value) => value !== null && value !== undefined).length <= SPARSE;
}

function shownRange(latest: Latest): [number, number] {
  const { props, range } = latest.current;
  const { from, to } = props.window ?? range ?? { from: 0, to: 1 };
  return from === to ? [from - 0.5, to + 0.5] : [from, to];
}

function readingUnder(plot: uPlot, latest: Latest): string {
  const { curves, axis } = latest.current.props;
  const { left } = plot.cursor;
  if (left === undefined || left === null || left < 0) return lastReading(curves.map((curve) => ({ ...curve, points: within(curve.points, latest.current.props.window) })));
  return readingAt(curves, axis, plot.posToVal(left, "x"));
}

function select(plot: uPlot, latest: Latest): void {
  const { left, width } = plot.select;
  if (width < MIN_DRAG_PX) return;
  const window = { from: plot.posToVal(left, "x"), to: plot.posToVal(left + width, "x") };
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  latest.current.props.onWindow(window);
}

/** The lines of markers and of the time cursor, and marks at the lower edge for values that a line cannot show. */
function drawMarks(plot: uPlot, latest: Latest, inks: Record<string, string>): void {
  const { curves, cursor, log } = latest.current.props;
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const { x } of latest.current.placed) upright(plot, x, faded(inks.faint!, 0.6), 1, [2, 3]);
  for (const { points } of curves) {
    if (cursor !== null) upright(plot, placeOf(points, cursor), inks.accent!, 1.5, []);
    sign(plot, points.not_finite, "✕", inks.failed!);
    if (log) sign(plot, belowLog(points), "▾", inks.recovering!);
  }
  ctx.restore();
}

function upright({ ctx, bbox, valToPos }: uPlot, at: number | null, ink: string, width: number, dash: number[]): void {
  if (at === null) return;
  const x = valToPos(at, "x", true);
  ctx.strokeStyle = ink;
  ctx.lineWidth = width * uPlot.pxRatio;
  ctx.setLineDash(dash.map((each) => each * uPlot.pxRatio));
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
}

function sign(plot: uPlot, places: readonly number[], text: string, ink: string): void {
  const { ctx, bbox } = plot;
  ctx.fillStyle = ink;
  ctx.textAlign = "center";
  ctx.textBaseline = "bottom";
  ctx.font = `${12 * uPlot.pxRatio}px system-ui, sans-serif`;
  for (const at of places) ctx.fillText(text, plot.valToPos(at, "x", true), bbox.top + bbox.height - uPlot.pxRatio);
}

