/**
 * A chart of one metric: a line for each run, a band from its lowest to its highest value, and markers.
 *
 * The crosshair is shared by all charts of a page. Moving it changes the plot and the text of the reading,
 * but renders nothing, so that it stays fast with many charts.
 */
import { useEffect, useId, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colours, useSize } from "../lib/canvas";
import { belowLog, markerPlace, momentOf, nearest, NO_POINTS, within, xRange, type PlacedMarker } from "../lib/curves";
import { pan, zoom, type Span } from "../lib/scale";
import { useScheme } from "../state/theme";
import { columnsOf, curveOptions, type Latest } from "./curve-plot";
import { lastReading, placeText, readingAt, summary, type AxisName, type DrawnCurve } from "./curve-text";
import { MarkerStrip } from "./marker-strip";

export interface CurveChartProps {
  name: string;
  unit?: string;
  axis: AxisName;
  curves: readonly DrawnCurve[];
  /** The visible part of the x axis; null for all of it. */
  window: Span | null;
  onWindow: (window: Span | null) => void;
  /** What is shown without a window: the range of all charts of the page. */
  whole?: Span | null;
  /** Shows a moment of a curve in all views. */
  onMoment: (atMs: number, curve: number) => void;
  smoothing: number;
  log: boolean;
  /** The moment that the time cursor shows; null when live. */
  cursor: number | null;
  /** Dims the last value: it is not the present one. */
  stale?: boolean;
  height?: number;
  /** More controls in the heading. */
  aside?: ReactNode;
  level?: 2 | 3;
}

const AXIS_PX = { left: 52, right: 14 };
const DOUBLE_CLICK_MS = 250;
const ZOOM = 1.5;
const PAN = 0.2;

export function CurveChart(props: CurveChartProps) {
  const { name, unit = "", axis, curves, window, log, cursor, height = 150, aside, level = 3 } = props;
  const { ref, size } = useSize<HTMLDivElement>();
  const scheme = useScheme();
  const help = useId();
  const plot = useRef<uPlot | null>(null);
  const reading = useRef<HTMLSpanElement>(null);
  const [point, setPoint] = useState<number | null>(null);
  const data = useMemo(() => columnsOf(curves, props.smoothing, log), [curves, props.smoothing, log]);
  const own = useMemo(() => xRange(curves.map(({ points }) => points)), [curves]);
  const range = own && (props.whole ?? own);
  const isPart = window !== null;
  const placed = useMemo(() => curves.flatMap((curve, index) => placedMarkers(curve, index, axis, isPart)), [curves, axis, isPart]);
  const latest = useRef({ props, data, range, placed });
  useEffect(() => {
    latest.current = { props, data, range, placed };
  });
  const isSmoothed = props.smoothing > 0;
  const looks = curves.map(({ colour, dash }) => `${colour} ${dash.join()}`).join(";");

  useEffect(() => {
    if (!ref.current || size.width === 0) return;
    const { props: now, data: columns } = latest.current;
    const inks = colours(["faint", "line", "text", "accent", "failed", "page", "recovering", ...now.curves.map(({ colour }) => colour)]);
    const made = new uPlot(curveOptions({ latest, width: size.width, height, inks, onReading: (text) => reading.current && (reading.current.textContent = text) }), columns, ref.current);
    plot.current = made;
    const stop = clicks(made, latest);
    return () => {
      stop();
      plot.current = null;
      made.destroy();
    };
  }, [ref, size.width, height, scheme, looks, log, axis, isSmoothed]);
  useEffect(() => plot.current?.setData(data), [data, window?.from, window?.to, range?.from, range?.to]);
  useEffect(() => plot.current?.redraw(false), [cursor, curves]);

  const shown = window ?? range;
  const inSight = useMemo(() => curves.map((curve) => ({ ...curve, points: within(curve.points, window) })), [curves, window]);
  const moveTo = (x: number) => {
    setPoint(x);
    plot.current?.setCursor({ left: plot.current.valToPos(x, "x"), top: 0 });
  };
  const onKey = (event: KeyboardEvent) => {
    const act = keyActions(latest.current, point, moveTo)[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };
  const Heading = `h${level}` as const;
  const at = point ?? inSight[0]?.points.x.at(-1) ?? 0;
  return (
    <div className="min-w-0" role="group" aria-label={name}>
      <div className="flex items-baseline gap-2">
        <Heading className="min-w-0 truncate font-semibold" title={name}>{name}</Heading>
        {unit && unit !== name && !name.endsWith(`_${unit}`) && <span className="text-s text-faint">{unit}</span>}
        <span className="ml-auto flex min-w-0 items-center gap-2 text-s text-dim">
          {curves.length === 1 && <span ref={reading} aria-hidden className={`truncate tabular-nums ${props.stale ? "text-faint" : ""}`}>{lastReading(inSight)}</span>}
          {aside}
        </span>
      </div>
      {shown && size.width > 0 && <MarkerStrip placed={placed} window={shown} width={size.width - AXIS_PX.left - AXIS_PX.right} left={AXIS_PX.left} onMoment={props.onMoment} />}
      <div
        ref={ref}
        role="slider"
        tabIndex={0}
        aria-label={summary(name, unit, inSight)}
        aria-valuemin={shown?.from ?? 0}
        aria-valuemax={shown?.to ?? 0}
        aria-valuenow={at}
        aria-valuetext={readingAt(curves, axis, at)}
        aria-describedby={help}
        data-page-keys
        className="relative cursor-crosshair touch-pan-y"
        style={{ height }}
        onKeyDown={onKey}
        onBlur={() => setPoint(null)}
      >
        {curves.length > 1 && <span ref={reading} aria-hidden className="pointer-events-none absolute top-0 right-4 z-10 bg-page/85 px-1 text-right text-s whitespace-pre text-dim tabular-nums" />}
        {range === null && <p className="absolute top-8 left-14 z-10 text-s text-faint">no value in this window</p>}
      </div>
      <p id={help} className="sr-only">Arrow keys move along the points, Enter shows the moment of a point in all views, + and − zoom, &lt; and &gt; pan, Home shows everything.</p>
      <Notes curves={inSight} axis={axis} log={log} />
    </div>
  );
}

/** The places of the markers of a curve; with several curves each text begins with the name of the run. */
function placedMarkers({ label, points, markers = [] }: DrawnCurve, curve: number, axis: AxisName, isPart: boolean): PlacedMarker[] {
  const byTime = axis === "time" || axis === "elapsed";
  return markers.flatMap((marker) => {
    const x = markerPlace(points, marker, byTime, isPart);
    return x === null ? [] : [{ x, curve, marker: label ? { ...marker, text: `${label}: ${marker.text}` } : marker }];
  });
}

/** The values that the line cannot show, in words; the plot has a mark for each. */
function Notes({ curves, axis, log }: Pick<CurveChartProps, "curves" | "axis" | "log">) {
  return curves.map(({ label, points }) => <CurveNotes key={label} label={label} wrong={points.not_finite} low={log ? belowLog(points) : []} axis={axis} />);
}

function CurveNotes({ label, wrong, low, axis }: { label: string; wrong: readonly number[]; low: readonly number[]; axis: AxisName }) {
  if (wrong.length === 0 && low.length === 0) return null;
  return (
    <p className="text-s text-dim">
      {label && `${label}: `}
      {wrong.length > 0 && <span className="mr-3"><span aria-hidden className="text-failed">✕</span> NaN or infinite at {wrong.length === 1 ? "" : `${wrong.length} points, first at `}{placeText(axis, Math.min(...wrong))}</span>}
      {low.length > 0 && <span><span aria-hidden className="text-recovering">▾</span> {low.length === 1 ? "1 point is" : `${low.length} points are`} not above 0, which a log scale cannot show</span>}
    </p>
  );
}

/** What each key does, for the point that the keyboard chose. */
function keyActions({ props, range }: Latest["current"], point: number | null, moveTo: (x: number) => void): Record<string, () => void> {
  const points = props.curves[0]?.points ?? NO_POINTS;
  const shown = props.window ?? range;
  const index = nearest(points.x, point ?? shown?.to ?? 0);
  const step = (by: number) => () => {
    const next = points.x[Math.min(Math.max(index + by, 0), points.x.length - 1)];
    if (next !== undefined) moveTo(next);
  };
  const zoomed = (factor: number) => () => shown && props.onWindow(zoom(shown, factor, point ?? (shown.from + shown.to) / 2, around(shown)));
  const panned = (share: number) => () => shown && props.onWindow(pan(shown, share, around(shown)));
  return {
    ArrowLeft: step(-1),
    ArrowRight: step(1),
    PageUp: step(-10),
    PageDown: step(10),
    Enter: () => {
      const moment = momentOf(points, points.x[index] ?? 0);
      if (moment !== null) props.onMoment(moment, 0);
    },
    "+": zoomed(1 / ZOOM),
    "-": zoomed(ZOOM),
    "<": panned(-PAN),
    ">": panned(PAN),
    Home: () => props.onWindow(null),
  };
}

/** A window with as much on both sides: the points beside a window are not loaded, so its neighbourhood is the limit. */
const around = ({ from, to }: Span): Span => ({ from: from - (to - from), to: to + (to - from) });

/** A click shows the moment, a double click the whole curve; a click in a zoomed chart waits for the second one. */
function clicks(made: uPlot, latest: Latest): () => void {
  let waiting: ReturnType<typeof setTimeout> | undefined;
  const act = (left: number) => {
    const { props } = latest.current;
    const at = made.posToVal(left, "x");
    const moments = props.curves.map(({ points }, curve) => ({ curve, x: points.x[nearest(points.x, at)] ?? Infinity, atMs: momentOf(points, at) }));
    const best = moments.toSorted((a, b) => Math.abs(a.x - at) - Math.abs(b.x - at))[0];
    if (best && best.atMs !== null) props.onMoment(best.atMs, best.curve);
  };
  const onClick = (event: MouseEvent) => {
    clearTimeout(waiting);
    if (event.detail > 1) return;
    const left = event.clientX - made.over.getBoundingClientRect().left;
    if (latest.current.props.window === null) act(left);
    else waiting = setTimeout(() => act(left), DOUBLE_CLICK_MS);
  };
  const onDouble = () => latest.current.props.onWindow(null);
  made.over.addEventListener("click", onClick);
  made.over.addEventListener("dblclick", onDouble);
  return () => clearTimeout(waiting);
}
