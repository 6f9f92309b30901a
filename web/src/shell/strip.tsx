/** The strip of time: live or a moment of the past, and how much happened when. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, type KeyboardEvent, type PointerEvent } from "react";
import type { Connection } from "../api/live";
import { density, span } from "../api/timeline";
import { drawDensity } from "../draw/density";
import { colours, fit, useSize } from "../lib/canvas";
import { age, clock, moment } from "../lib/format";
import { toMoment, toPixel, type Span } from "../lib/scale";
import { goLive, moveCursor, useCursor, useDemo, useLive, useNow, useRun } from "../state/cluster";
import { useScheme } from "../state/theme";
import { Button } from "../ui/controls";
import { DemoPlayer } from "./demo";

const REFRESH_MS = 30_000;
const GROW_MS = 15_000;
const STEP = 0.01;

/**
 * From when to when the coordinator remembers; null while it does not tell. The end is taken from the
 * clock in between: of a large cluster the span costs the coordinator something.
 */
export function useSpan(): Span | null {
  const now = useNow(GROW_MS);
  const { data } = useQuery({
    queryKey: ["timeline span"],
    queryFn: ({ signal }) => span(signal),
    refetchInterval: (query) => (query.state.error ? false : REFRESH_MS),
    retry: false,
  });
  if (!data || data.to_ms <= data.from_ms) return null;
  const to = Math.max(data.to_ms, Math.floor(now / GROW_MS) * GROW_MS);
  return { from: data.from_ms, to: data.live ? to : data.to_ms };
}

export function Strip() {
  const cursor = useCursor();
  const run = useRun();
  const demo = useDemo() === "recorded";
  const remembered = useSpan();
  const end = remembered?.to;
  useEffect(() => {
    // An archived run has no present: without a moment its last one is meant.
    if (run && cursor === null && end !== undefined) moveCursor(end);
  }, [run, cursor, end]);
  return (
    <header
      aria-label="Time"
      className="flex h-11 min-w-0 items-center gap-3 border-b border-line bg-rail px-6 max-sm:px-4"
    >
      <State />
      <div className="h-7 min-w-0 flex-1">{remembered && <Scrubber bounds={remembered} />}</div>
      {cursor !== null && (
        <>
          {demo && remembered && <DemoPlayer bounds={remembered} />}
          {run && !demo && <span className="max-w-60 truncate text-dim max-md:hidden" title={`archived run ${run}`}>{run}</span>}
          <time className="text-accent max-sm:hidden">{moment(cursor, true)}</time>
          {!demo && (
            <Button tone="main" onClick={goLive} title="L">
              Live
            </Button>
          )}
        </>
      )}
    </header>
  );
}

const WORDS: Record<Connection["state"], string> = {
  connecting: "connecting",
  live: "live",
  stale: "stale",
  gone: "reconnecting",
  locked: "locked",
};

function State() {
  const cursor = useCursor();
  const now = useNow();
  const { connection, skewMs } = useLive();
  const demo = useDemo();
  const live = connection.state === "live";
  const past = live && cursor !== null;
  const ink = past ? "text-accent" : live ? "text-active" : "text-recovering";
  const played = demo === "recorded" && live;
  const word = played ? "demo" : past ? "past" : demo && live ? "demo" : WORDS[connection.state];
  const since = "since" in connection ? age(connection.since, now - skewMs) : "";
  return (
    <span role="status" className="flex w-30 shrink-0 items-center gap-2 whitespace-nowrap">
      <span aria-hidden className={`${ink} ${live && !past ? "breathing" : ""}`}>
        {past ? "◆" : live ? "●" : "○"}
      </span>
      <span>
        {word} {since && <span className="text-faint">{since}</span>}
        {live && !past && <span className="text-faint">{clock(now)}</span>}
      </span>
    </span>
  );
}

function Scrubber({ bounds }: { bounds: Span }) {
  const cursor = useCursor();
  const end = useRun() ? bounds.to : null;
  const scheme = useScheme();
  const { ref, size } = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const buckets = Math.max(1, Math.min(1000, Math.floor(size.width / 3)));
  const { from, to } = bounds;
  const { data } = useQuery({
    queryKey: ["density", from, to, buckets],
    queryFn: ({ signal }) => density({ from_ms: from, to_ms: to, buckets }, signal),
    enabled: size.width > 0,
    placeholderData: (before) => before,
    retry: false,
  });
  useEffect(() => {
    const context = canvas.current && fit(canvas.current, size);
    const inks = colours(["edge", "failed", "recovering", "saving"]);
    if (!context || !data) return;
    const place = (at: number) => toPixel({ from, to }, size.width, at);
    drawDensity(context, size, [place(data.from_ms), place(data.to_ms)], data.buckets, inks);
  }, [data, from, to, size, scheme]);

  const shown = cursor ?? bounds.to;
  const seek = (event: PointerEvent<HTMLDivElement>) => {
    if (event.buttons !== 1) return;
    const x = event.clientX - event.currentTarget.getBoundingClientRect().left;
    moveCursor(Math.min(Math.max(toMoment(bounds, size.width, x), bounds.from), bounds.to));
  };
  const step = (event: KeyboardEvent) => {
    const length = bounds.to - bounds.from;
    const moves: Record<string, number> = {
      ArrowLeft: shown - length * STEP,
      ArrowRight: shown + length * STEP,
      Home: bounds.from,
    };
    const target = event.key === "End" ? bounds.to : moves[event.key];
    if (target === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    moveCursor(target >= bounds.to ? end : Math.max(target, bounds.from));
  };
  return (
    <div
      ref={ref}
      role="slider"
      tabIndex={0}
      aria-label="Moment shown"
      aria-valuemin={Math.round(bounds.from)}
      aria-valuemax={Math.round(bounds.to)}
      aria-valuenow={Math.round(shown)}
      aria-valuetext={cursor === null ? "live" : moment(cursor)}
      className="relative h-full cursor-crosshair touch-none"
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        seek(event);
      }}
      onPointerMove={seek}
      onKeyDown={step}
    >
      <canvas ref={canvas} aria-hidden className="absolute inset-0 h-full w-full" />
      <div
        aria-hidden
        className={`absolute inset-y-0 -ml-px w-0.5 ${cursor === null ? "bg-active" : "bg-accent"}`}
        style={{ left: Math.min(toPixel(bounds, size.width, shown), size.width) }}
      />
    </div>
  );
}
