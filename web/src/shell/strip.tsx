/** The time strip: the connection state, the time cursor, and a histogram of events. */
import { useEffect } from "react";
import type { Connection } from "../api/live";
import { age, clock, moment } from "../lib/format";
import { goLive, moveCursor, useCursor, useDemo, useLive, useNow, useRun } from "../state/cluster";
import { useSpan } from "../state/recorded-span";
import { Button } from "../ui/controls";
import { Bell } from "./bell";
import { DemoPlayer } from "./demo";
import { Scrubber } from "./scrubber";

export function Strip() {
  const cursor = useCursor();
  const run = useRun();
  const demo = useDemo() === "recorded";
  const { span: recorded } = useSpan();
  const end = recorded?.to;
  useEffect(() => {
    // An archived run has no live state: without a cursor its end is shown.
    if (run && cursor === null && end !== undefined) moveCursor(end);
  }, [run, cursor, end]);
  return (
    <header
      aria-label="Time"
      className="flex h-11 min-w-0 items-center gap-3 border-b border-line bg-rail px-6 max-sm:px-4"
    >
      <ConnectionState />
      <div className="h-7 min-w-0 flex-1">{recorded && <Scrubber bounds={recorded} />}</div>
      {cursor !== null && (
        <>
          {demo && recorded && <DemoPlayer bounds={recorded} />}
          {run && !demo && <span className="max-w-60 truncate text-dim max-md:hidden" title={`Archived run ${run}`}>{run}</span>}
          <time className="w-42 shrink-0 text-right whitespace-nowrap text-accent max-sm:hidden">{moment(cursor, true)}</time>
          {!demo && (
            <Button tone="main" onClick={goLive} title="L">
              Live
            </Button>
          )}
        </>
      )}
      <Bell />
    </header>
  );
}

const LABELS: Record<Connection["state"], string> = {
  connecting: "connecting",
  live: "live",
  stale: "stale",
  disconnected: "disconnected",
  locked: "token required",
};

function ConnectionState() {
  const cursor = useCursor();
  const now = useNow();
  const { connection, skewMs } = useLive();
  const demo = useDemo();
  const live = connection.state === "live";
  const past = live && cursor !== null;
  const ink = past ? "text-accent" : live ? "text-active" : connection.state === "disconnected" ? "text-failed" : "text-recovering";
  const played = demo === "recorded" && live;
  const word = played ? "demo" : past ? "past" : demo && live ? "demo" : LABELS[connection.state];
  const since = "since" in connection ? age(connection.since, now - skewMs) : "";
  return (
    <span role="status" className="flex min-w-30 shrink-0 items-center gap-2 whitespace-nowrap">
      <span aria-hidden className={`${ink} ${live && !past ? "breathing" : ""}`}>
        {past ? "◆" : live ? "●" : connection.state === "disconnected" ? "✕" : "○"}
      </span>
      <span>
        {word} {since && <span className="text-faint">{since}</span>}
        {live && !past && <span className="text-faint">{clock(now)}</span>}
      </span>
    </span>
  );
}
