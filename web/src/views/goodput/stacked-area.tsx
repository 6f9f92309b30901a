/** The workers' time by class, stacked over time; a click moves the time cursor there. */
import { useState, type MouseEvent } from "react";
import type { Goodput } from "../../api/timeline";
import { clock, duration } from "../../lib/format";
import { moveCursor, useCursor } from "../../state/cluster";
import { inkOf, ORDER, share } from "./time-classes";

type Series = Goodput["series"];

const HEIGHT_PX = 208;
const TICKS = 5;

/** The upper and lower edge of each class in each slice, as shares of the tallest slice. */
export function layers(series: Series): { name: string; edges: readonly (readonly [from: number, to: number])[] }[] {
  const sums = series.map(({ seconds }) => Object.values(seconds).reduce((sum, each) => sum + (each ?? 0), 0));
  const top = Math.max(...sums, Number.MIN_VALUE);
  const reached = series.map(() => 0);
  const present = ORDER.filter((name) => series.some(({ seconds }) => (seconds[name] ?? 0) > 0));
  return present.map((name) => ({
    name,
    edges: series.map(({ seconds }, at) => {
      const from = reached[at]!;
      const to = from + (seconds[name] ?? 0) / top;
      reached[at] = to;
      return [from, to] as const;
    }),
  }));
}

/** The outline of one layer in a box of `count` by 1, as steps: a slice is a sum, not a sample. */
function outline(edges: readonly (readonly [number, number])[]): string {
  const upper = edges.map(([, to], at) => `${at},${1 - to} ${at + 1},${1 - to}`);
  const lower = edges.map(([from], at) => `${at + 1},${1 - from} ${at},${1 - from}`).toReversed();
  return [...upper, ...lower].join(" ");
}

export function StackedArea({ goodput }: { goodput: Goodput }) {
  const cursor = useCursor();
  const [at, setAt] = useState<number | null>(null);
  const { series, from_ms, to_ms, slice_ms } = goodput;
  const whole = Math.max(to_ms - from_ms, 1);
  const momentOf = (event: MouseEvent) => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    return from_ms + ((event.clientX - left) / Math.max(width, 1)) * series.length * slice_ms;
  };
  const sliceAt = at === null ? undefined : series[Math.min(Math.floor((at - from_ms) / slice_ms), series.length - 1)];
  const said = goodput.classes.map((each) => `${each.label} ${share(each.share)}`).join(", ");
  const shown = cursor !== null && cursor >= from_ms && cursor <= to_ms ? (cursor - from_ms) / (series.length * slice_ms) : null;
  return (
    <figure className="m-0">
      <div className="relative border-b border-line" style={{ height: HEIGHT_PX }}>
        <svg
          role="img"
          aria-label={`Worker time by class: ${said}`}
          viewBox={`0 0 ${series.length} 1`}
          preserveAspectRatio="none"
          className="block size-full"
        >
          {layers(series).map(({ name, edges }) => (
            <polygon key={name} points={outline(edges)} fill={`var(--color-${inkOf(name).colour})`} fillOpacity={inkOf(name).opacity} />
          ))}
        </svg>
        {/* The strip moves the cursor with the keyboard. */}
        <button
          type="button"
          tabIndex={-1}
          aria-label="Move the time cursor to this moment"
          className="absolute inset-0 size-full cursor-crosshair"
          onMouseMove={(event) => setAt(momentOf(event))}
          onMouseLeave={() => setAt(null)}
          onClick={(event) => moveCursor(Math.round(momentOf(event)))}
        />
        {shown !== null && <span aria-hidden className="pointer-events-none absolute inset-y-0 w-px bg-text" style={{ left: `${shown * 100}%` }} />}
      </div>
      <div className="mt-1 flex justify-between text-s text-faint">
        {Array.from({ length: TICKS }, (_, tick) => (
          <time key={tick}>{clock(from_ms + (whole * tick) / (TICKS - 1))}</time>
        ))}
      </div>
      <figcaption className="mt-1 h-5 truncate text-s text-dim">
        {sliceAt
          ? `${clock(sliceAt.from_ms)}: ${ORDER.filter((name) => sliceAt.seconds[name]).map((name) => `${labelOf(goodput, name)} ${duration((sliceAt.seconds[name] ?? 0) * 1000)}`).join(" · ")}`
          : `Each slice is ${duration(slice_ms)} of ${goodput.workers} workers.`}
      </figcaption>
    </figure>
  );
}

const labelOf = (goodput: Goodput, name: string) => goodput.classes.find((each) => each.name === name)?.label ?? name;
