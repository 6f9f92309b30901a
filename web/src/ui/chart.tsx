/** A chart of lines over time. The charts of one page share a crosshair. */
import { useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colours, faded, useSize } from "../lib/canvas";
import { clock, compact } from "../lib/format";
import { useScheme } from "../state/theme";

export interface Line {
  values: readonly (number | null)[];
  colour: string;
}

interface Props {
  label: string;
  at: readonly number[];
  lines: readonly Line[];
  height?: number;
  /** Text for a chart without any value. */
  empty?: string;
  /** The smallest upper end of the y axis. */
  least?: number;
  /** Called with the index of the sample under the crosshair; null when there is none. */
  onPoint?: (index: number | null) => void;
}

const FONT = '11px "Inter", system-ui, sans-serif';
const SHARED = uPlot.sync("time");

/** Times of day for the axis; with seconds when ticks are less than a minute apart. */
export function timeLabels(at: readonly number[]): string[] {
  const close = at.length > 1 && at[1]! - at[0]! < 60_000;
  return at.map((each) => (close ? clock(each) : clock(each).slice(0, 5)));
}

function options(props: Props, width: number, inks: Record<string, string>): uPlot.Options {
  const axis = {
    stroke: inks.faint!,
    font: FONT,
    ticks: { show: false },
    grid: { stroke: inks.line!, width: 1 },
  };
  return {
    width,
    height: props.height ?? 112,
    ms: 1,
    padding: [8, 24, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: SHARED.key }, y: false, points: { size: 6 }, drag: { setScale: false } },
    scales: { y: { range: (_, __, max) => [0, Math.max((max ?? 0) * 1.15, props.least ?? 1)] } },
    axes: [
      { ...axis, size: 24, space: 80, grid: { show: false }, values: (_, at) => timeLabels(at) },
      { ...axis, size: 40, space: 32, values: (_, at) => at.map(compact) },
    ],
    series: [
      {},
      ...props.lines.map(({ colour }) => ({
        stroke: inks[colour]!,
        fill: faded(inks[colour]!, 0.1),
        width: 1.5,
        points: { show: false },
      })),
    ],
    hooks: { setCursor: [(plot) => props.onPoint?.(plot.cursor.idx ?? null)] },
  };
}

/** The columns to draw; the same object while no column changes, so that the chart is not drawn again. */
function useColumns(at: Props["at"], lines: Props["lines"]): uPlot.AlignedData {
  const columns = [at, ...lines.map((line) => line.values)];
  const [known, setKnown] = useState(columns);
  const same = columns.length === known.length && columns.every((column, index) => column === known[index]);
  if (!same) setKnown(columns);
  return (same ? known : columns) as unknown as uPlot.AlignedData;
}

export function Chart(props: Props) {
  const { at, lines, label, height = 112, empty: emptyText = "nothing measured yet" } = props;
  const { ref, size } = useSize<HTMLDivElement>();
  const plot = useRef<uPlot | null>(null);
  const scheme = useScheme();
  const data = useColumns(at, lines);
  const latest = useRef({ props, data });
  useEffect(() => {
    latest.current = { props, data };
  });
  useEffect(() => {
    if (!ref.current || size.width === 0) return;
    const inks = colours(["faint", "line", ...latest.current.props.lines.map((line) => line.colour)]);
    const given = { ...latest.current.props, onPoint: (index: number | null) => latest.current.props.onPoint?.(index) };
    const made = new uPlot(options(given, size.width, inks), latest.current.data, ref.current);
    plot.current = made;
    return () => {
      plot.current = null;
      made.destroy();
    };
  }, [ref, size.width, scheme, lines.length]);
  useEffect(() => plot.current?.setData(data), [data]);
  const empty = lines.every((line) => line.values.every((value) => value === null));
  return (
    <div ref={ref} role="img" aria-label={label} className="relative" style={{ height }}>
      {empty && <p className="absolute top-8 left-12 z-10 bg-page pr-2 text-s text-faint">{emptyText}</p>}
    </div>
  );
}
