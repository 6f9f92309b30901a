/** The slider of the time cursor over a histogram of events; moved by dragging or with the arrow keys. */
import { useIsFetching, useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState, type KeyboardEvent, type PointerEvent } from "react";
import { drawDensity } from "../draw/density";
import { colours, fit, useSize } from "../lib/canvas";
import { moment } from "../lib/format";
import { toMoment, toPixel, type Span } from "../lib/scale";
import { MOMENT_KEY, moveCursor, useCursor, useRun, useTimeline } from "../state/cluster";
import { useScheme } from "../state/theme";

const STEP = 0.01;
/** The number of buckets is a multiple of 100, so that pages of similar width share a cached answer. */
const BUCKET_STEP = 100;
const BUCKET_PX = 3;

export function Scrubber({ bounds }: { bounds: Span }) {
  const { held, hold } = useDraggedMoment(bounds);
  const { ref, size } = useSize<HTMLDivElement>();
  const shown = held ?? bounds.to;
  const seek = (event: PointerEvent<HTMLDivElement>) => {
    if (event.buttons !== 1) return;
    const x = event.clientX - event.currentTarget.getBoundingClientRect().left;
    hold(Math.min(Math.max(toMoment(bounds, size.width, x), bounds.from), bounds.to));
  };
  const step = (event: KeyboardEvent) => {
    const length = bounds.to - bounds.from;
    const moves: Record<string, number> = {
      ArrowLeft: shown - length * STEP,
      ArrowRight: shown + length * STEP,
      Home: bounds.from,
      End: bounds.to,
    };
    const target = moves[event.key];
    if (target === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    hold(target >= bounds.to ? null : Math.max(target, bounds.from));
  };
  return (
    <div
      ref={ref}
      role="slider"
      tabIndex={0}
      aria-label="Moment shown"
      aria-valuemin={Math.round(bounds.from)}
      aria-valuemax={Math.ceil(bounds.to)}
      aria-valuenow={Math.ceil(shown)}
      aria-valuetext={held === null ? "live" : moment(held)}
      className="relative h-full cursor-crosshair touch-none"
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        seek(event);
      }}
      onPointerMove={seek}
      onKeyDown={step}
    >
      <Histogram bounds={bounds} width={size.width} height={size.height} />
      <div
        aria-hidden
        className={`absolute inset-y-0 -ml-px w-0.5 ${held === null ? "bg-active" : "bg-accent"}`}
        style={{ left: Math.min(toPixel(bounds, size.width, shown), size.width) }}
      />
    </div>
  );
}

/**
 * The moment under the pointer, which the slider shows at once. The views load one moment at a time and
 * always end with the last one. Null is live; an archived run has no live state, so its end is used.
 */
function useDraggedMoment(bounds: Span) {
  const cursor = useCursor();
  const archived = useRun() !== "";
  const busy = useIsFetching({ queryKey: [MOMENT_KEY] }) > 0;
  const [wanted, setWanted] = useState<{ at: number | null } | null>(null);
  if (wanted?.at === cursor) setWanted(null);
  useEffect(() => {
    if (wanted && !busy) moveCursor(wanted.at);
  }, [wanted, busy]);
  const hold = (at: number | null) => {
    const target = at ?? (archived ? bounds.to : null);
    setWanted({ at: target && Math.ceil(target) });
  };
  return { held: wanted ? wanted.at : cursor, hold };
}

function Histogram({ bounds: { from, to }, width, height }: { bounds: Span; width: number; height: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const scheme = useScheme();
  const timeline = useTimeline();
  const buckets = Math.min(Math.ceil(width / BUCKET_PX / BUCKET_STEP) * BUCKET_STEP, 1000);
  const { data } = useQuery({
    queryKey: ["density", from, to, buckets],
    queryFn: ({ signal }) => timeline.density({ from_ms: from, to_ms: to, buckets }, signal),
    enabled: buckets > 0,
    placeholderData: (before) => before,
    retry: false,
  });
  useEffect(() => {
    const context = canvas.current && fit(canvas.current, { width, height });
    if (!context || !data) return;
    const inks = colours(["edge", "failed", "recovering", "saving"]);
    const place = (at: number) => toPixel({ from, to }, width, at);
    drawDensity(context, { width, height }, [place(data.from_ms), place(data.to_ms)], data.buckets, inks);
  }, [data, from, to, width, height, scheme]);
  return <canvas ref={canvas} aria-hidden className="absolute inset-0 h-full w-full" />;
}
