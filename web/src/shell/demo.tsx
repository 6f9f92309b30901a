/** The recorded demo: a run of a simulated cluster, played in a loop at its original speed. */
import { useEffect, useRef, useState } from "react";
import { DEMO } from "../api/timeline";
import type { Span } from "../lib/scale";
import { moveCursor, openRun, useCursor } from "../state/cluster";
import { Button } from "../ui/controls";

const TICK_MS = 1000;
/** Playback starts here, so that the charts have a past. */
const START_MS = 180_000;

/** Opens the demo; `DemoPlayer` moves the time cursor into it once its span is known. */
export function openDemo(): void {
  openRun(DEMO, 0);
}

export function DemoPlayer({ bounds }: { bounds: Span }) {
  const cursor = useCursor();
  const [playing, setPlaying] = useState(true);
  const latest = useRef({ cursor, bounds });
  useEffect(() => {
    latest.current = { cursor, bounds };
  });
  useEffect(() => {
    if (!playing) return;
    const timer = setInterval(() => {
      const { cursor: at, bounds: within } = latest.current;
      const next = (at ?? 0) + TICK_MS;
      const inside = next > within.from && next < within.to;
      moveCursor(inside ? next : within.from + START_MS);
    }, TICK_MS);
    return () => clearInterval(timer);
  }, [playing]);
  useEffect(() => {
    if (cursor !== null && cursor < bounds.from) moveCursor(bounds.from + START_MS);
  }, [cursor, bounds]);
  return (
    <Button onClick={() => setPlaying(!playing)} aria-pressed={playing} className="w-16 justify-center">
      {playing ? "Pause" : "Play"}
    </Button>
  );
}
