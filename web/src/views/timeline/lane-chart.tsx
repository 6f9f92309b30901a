/** The lanes on a canvas: drag to pan, turn the wheel to zoom, click an event to open it. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState, type PointerEvent } from "react";
import type { Lane } from "../../api/timeline";
import { AXIS_PX, chartWidth, drawArrow, drawLanes, heightOf, hit, KIND_COLOURS, labelWidth, rowsOf, type Scene } from "../../draw/lanes";
import { colours, fit, useSize } from "../../lib/canvas";
import { clock, duration, plural } from "../../lib/format";
import { toMoment, zoom, within, type Span } from "../../lib/scale";
import { useTimeline } from "../../state/cluster";
import { useScheme } from "../../state/theme";
import { useParam } from "../../state/url";
import { Empty, Loading } from "../../ui/placeholders";
import { Term } from "../../ui/term";

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
  const timeline = useTimeline();
  const [idle] = useParam("idle");
  const inks = useMemo(() => ({ scheme, ...colours(INKS) }), [scheme]);
  const rows = useMemo(() => rowsOf(lanes, span, idle === ""), [lanes, span, idle]);
  const scene: Scene = { span, now, cursor, chosen, inks };
  const area = { width: size.width, height: heightOf(rows) };
  const detail = useQuery({
    queryKey: ["event", chosen],
    queryFn: ({ signal }) => timeline.event(chosen, signal),
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

  const pointer = usePointer({ area, rows, scene, bounds, onSpan, onEvent, onMoment });
  useWheel(canvas, (x, factor) => {
    const around = toMoment(span, chartWidth(area), x - labelWidth(area));
    onSpan(zoom(span, factor, around, bounds));
  });
  return (
    <div className="flex max-h-[55%] shrink-0 flex-col px-6 max-sm:px-4">
      {/* oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
      <div ref={ref} role="region" aria-label="Lanes" tabIndex={0} data-page-keys className="overflow-y-auto">
        <canvas
          ref={canvas}
          role="img"
          aria-label={`What ${plural(lanes.length, "worker")} did from ${clock(span.from)} to ${clock(span.to)}; the list below has the events`}
          className="block w-full touch-pan-y"
          style={{ height: area.height, cursor: pointer.over ? "pointer" : "grab" }}
          {...pointer.handlers}
        />
      </div>
      {loading && <Loading />}
      {lanes.length === 0 && !loading && <Empty title="No worker ran in this time" text="Zoom out (S), or choose another time on the strip at the top." />}
      <p className="h-5 truncate text-s text-dim">
        {pointer.over && (
          <>
            <span className="font-medium text-text">{pointer.over.lane.label || pointer.over.lane.node}</span> {pointer.over.label}, {clock(pointer.over.from_ms, true)}
            {pointer.over.to_ms !== null && ` for ${duration(pointer.over.to_ms - pointer.over.from_ms)}`}
          </>
        )}
      </p>
    </div>
  );
}

interface PointerProps {
  area: { width: number; height: number };
  rows: ReturnType<typeof rowsOf>;
  scene: Scene;
  bounds: Span;
  onSpan: (span: Span) => void;
  onEvent: (ref: string) => void;
  onMoment: (at: number) => void;
}

/** Dragging pans, a click opens an event, and on the axis or an empty place it sets the time cursor. */
function usePointer({ area, rows, scene, bounds, onSpan, onEvent, onMoment }: PointerProps) {
  const [over, setOver] = useState<ReturnType<typeof hit>>(null);
  const drag = useRef<{ x: number; y: number; span: Span } | null>(null);
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
        drag.current = { x, y, span: scene.span };
      },
      onPointerMove: (event: PointerEvent) => {
        const [x, y] = at(event);
        const start = drag.current;
        if (!start) return setOver(hit(rows, area, scene, x, y));
        if (start.y < AXIS_PX) return onMoment(momentAt(x));
        const shift = ((start.x - x) / chartWidth(area)) * (start.span.to - start.span.from);
        if (Math.abs(start.x - x) > CLICK_PX) onSpan(within({ from: start.span.from + shift, to: start.span.to + shift }, bounds));
      },
      onPointerUp: (event: PointerEvent) => {
        const [x, y] = at(event);
        const start = drag.current;
        drag.current = null;
        if (!start || Math.abs(start.x - x) > CLICK_PX) return;
        const found = hit(rows, area, scene, x, y);
        if (found) onEvent(found.ref);
        else if (x > labelWidth(area)) onMoment(momentAt(x));
      },
      onPointerLeave: () => setOver(null),
    },
  };
}

/** Zooms with the wheel. React's own wheel listener is passive and cannot stop the page from scrolling. */
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

export function LaneLegend({ truncated, exact }: { truncated: boolean; exact: boolean }) {
  const [idle, setIdle] = useParam("idle");
  return (
    <div className="flex flex-wrap items-center gap-x-4 px-6 pb-2 text-s text-dim max-sm:px-4">
      <Term word="lane">Lanes</Term>
      {Object.entries(KIND_COLOURS).map(([kind, colour]) => (
        <span key={kind} className="flex items-center gap-1.5">
          <span aria-hidden className="size-2.5" style={{ background: `var(--color-${colour})` }} />
          {kind}
        </span>
      ))}
      <label className="ml-auto flex items-center gap-1.5">
        <input type="checkbox" checked={idle === ""} onChange={(event) => setIdle(event.target.checked ? "" : "shown")} />
        collapse idle lanes
      </label>
      {!exact && (
        <span className="text-recovering">
          too many events: waiting is drawn as training; choose a shorter span
        </span>
      )}
      {truncated && <span className="text-recovering">200 workers are shown: choose a task to see others</span>}
    </div>
  );
}
