/** The demo in the page: a recorded run of a simulated cluster, played in a loop at its own pace. */
import { useEffect, useRef, useState } from "react";
import { DEMO } from "../api/timeline";
import type { Span } from "../lib/scale";
import { moveCursor, openRun, useCursor } from "../state/cluster";
import { Button } from "../ui/controls";

const TICK_MS = 1000;
/** Where it begins: some of the past is there already. */
const BEGIN_MS = 180_000;

/** Starts the demo; the strip puts the cursor into it as soon as it is known how long it is. */
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
      moveCursor(inside ? next : within.from + BEGIN_MS);
    }, TICK_MS);
    return () => clearInterval(timer);
  }, [playing]);
  useEffect(() => {
    if (cursor !== null && cursor < bounds.from) moveCursor(bounds.from + BEGIN_MS);
  }, [cursor, bounds]);
  return (
    <Button onClick={() => setPlaying(!playing)} aria-pressed={playing} className="w-16 justify-center">
      {playing ? "Pause" : "Play"}
    </Button>
  );
}
