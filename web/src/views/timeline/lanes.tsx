/** The lanes on a canvas: drag to pan, wheel to zoom, click an event to see it. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState, type PointerEvent } from "react";
import { event as askEvent, type Lane } from "../../api/timeline";
import { AXIS_PX, chartWidth, drawArrow, drawLanes, heightOf, hit, KIND_COLOURS, labelWidth, rowsOf, type Scene } from "../../draw/lanes";
import { colours, fit, useSize } from "../../lib/canvas";
import { clock, duration } from "../../lib/format";
import { toMoment, zoom, within, type Span } from "../../lib/scale";
import { useScheme } from "../../state/theme";
import { useParam } from "../../state/url";
import { Empty, Loading } from "../../ui/empty";

const INKS = ["active", "accent", "edge", "saving", "recovering", "faint", "line", "failed", "text", "page"] as const;
const CLICK_PX = 4;

interface Props {
  loading?: boolean;
  lanes: readonly Lane[];
  span: Span;
  bounds: Span;
  now: number;
  cursor: number | null;
  chosen: string;
  onSpan: (span: Span) => void;
  onEvent: (ref: string) => void;
  onMoment: (at: number) => void;
}

export function LaneChart({ loading = false, lanes, span, bounds, now, cursor, chosen, onSpan, onEvent, onMoment }: Props) {
  const { ref, size } = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const scheme = useScheme();
  const [idle] = useParam("idle");
  const inks = useMemo(() => ({ scheme, ...colours(INKS) }), [scheme]);
  const rows = useMemo(() => rowsOf(lanes, span, idle === ""), [lanes, span, idle]);
  const scene: Scene = { span, now, cursor, chosen, inks };
  const area = { width: size.width, height: heightOf(rows) };
  const detail = useQuery({
    queryKey: ["event", chosen],
    queryFn: ({ signal }) => askEvent(chosen, signal),
    enabled: chosen !== "",
    staleTime: Infinity,
    retry: false,
  }).data;

  useEffect(() => {
    const context = canvas.current && size.width > 0 ? fit(canvas.current, area) : null;
    if (!context) return;
    drawLanes(context, area, rows, scene);
    for (const cause of detail?.causes ?? []) drawArrow(context, area, rows, scene, cause, detail!);
    for (const effect of detail?.effects ?? []) drawArrow(context, area, rows, scene, detail!, effect);
  });

  const hands = useHands({ area, rows, scene, bounds, onSpan, onEvent, onMoment });
  useWheel(canvas, (x, factor) => {
    const around = toMoment(span, chartWidth(area), x - labelWidth(area));
    onSpan(zoom(span, factor, around, bounds));
  });
  return (
    <div className="flex max-h-[55%] shrink-0 flex-col px-6 max-sm:px-4">
      <div ref={ref} className="overflow-y-auto">
        <canvas
          ref={canvas}
          role="img"
          aria-label={`What ${lanes.length} workers did from ${clock(span.from)} to ${clock(span.to)}; the list below has the events`}
          className="block w-full touch-pan-y"
          style={{ height: area.height, cursor: hands.over ? "pointer" : "grab" }}
          {...hands.handlers}
        />
      </div>
      {loading && <Loading />}
      {lanes.length === 0 && !loading && <Empty title="No worker ran in this time" text="Zoom out with S, or go to another time on the strip above." />}
      <p className="h-5 truncate text-s text-dim">
        {hands.over && (
          <>
            <span className="font-medium text-text">{hands.over.lane.label || hands.over.lane.node}</span> {hands.over.label}, {clock(hands.over.from_ms, true)}
            {hands.over.to_ms !== null && ` for ${duration(hands.over.to_ms - hands.over.from_ms)}`}
          </>
        )}
      </p>
    </div>
  );
}

interface Hands {
  area: { width: number; height: number };
  rows: ReturnType<typeof rowsOf>;
  scene: Scene;
  bounds: Span;
  onSpan: (span: Span) => void;
  onEvent: (ref: string) => void;
  onMoment: (at: number) => void;
}

/** Dragging pans, a click chooses; on the axis it sets the cursor. */
function useHands({ area, rows, scene, bounds, onSpan, onEvent, onMoment }: Hands) {
  const [over, setOver] = useState<ReturnType<typeof hit>>(null);
  const grip = useRef<{ x: number; y: number; span: Span } | null>(null);
  const at = (event: PointerEvent): [number, number] => {
    const box = event.currentTarget.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const momentAt = (x: number) => toMoment(scene.span, chartWidth(area), x - labelWidth(area));
  return {
    over,
    handlers: {
      onPointerDown: (event: PointerEvent) => {
        const [x, y] = at(event);
        event.currentTarget.setPointerCapture(event.pointerId);
        grip.current = { x, y, span: scene.span };
      },
      onPointerMove: (event: PointerEvent) => {
        const [x, y] = at(event);
        const held = grip.current;
        if (!held) return setOver(hit(rows, area, scene, x, y));
        if (held.y < AXIS_PX) return onMoment(momentAt(x));
        const shift = ((held.x - x) / chartWidth(area)) * (held.span.to - held.span.from);
        if (Math.abs(held.x - x) > CLICK_PX) onSpan(within({ from: held.span.from + shift, to: held.span.to + shift }, bounds));
      },
      onPointerUp: (event: PointerEvent) => {
        const [x, y] = at(event);
        const held = grip.current;
        grip.current = null;
        if (!held || Math.abs(held.x - x) > CLICK_PX) return;
        const found = hit(rows, area, scene, x, y);
        if (found) onEvent(found.ref);
        else if (x > labelWidth(area)) onMoment(momentAt(x));
      },
      onPointerLeave: () => setOver(null),
    },
  };
}

/** A wheel zooms while Ctrl is held or it turns over the chart; React's own listener cannot stop the page from scrolling. */
function useWheel(canvas: React.RefObject<HTMLCanvasElement | null>, act: (x: number, factor: number) => void) {
  const latest = useRef(act);
  useEffect(() => {
    latest.current = act;
  });
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const onWheel = (event: WheelEvent) => {
      event.preventDefault();
      latest.current(event.clientX - element.getBoundingClientRect().left, Math.exp(event.deltaY / 300));
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, [canvas]);
}

export function LaneLegend({ truncated }: { truncated: boolean }) {
  const [idle, setIdle] = useParam("idle");
  return (
    <div className="flex flex-wrap items-center gap-x-4 px-6 pb-2 text-s text-dim max-sm:px-4">
      {Object.entries(KIND_COLOURS).map(([kind, colour]) => (
        <span key={kind} className="flex items-center gap-1.5">
          <span aria-hidden className="size-2.5" style={{ background: `var(--color-${colour})` }} />
          {kind}
        </span>
      ))}
      <label className="ml-auto flex items-center gap-1.5">
        <input type="checkbox" checked={idle === ""} onChange={(event) => setIdle(event.target.checked ? "" : "shown")} />
        collapse idle
      </label>
      {truncated && <span className="text-recovering">not all workers are shown: choose a task</span>}
    </div>
  );
}
