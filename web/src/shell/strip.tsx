/** The strip of time: live or a moment of the past, and how much happened when. */
import { useEffect } from "react";
import type { Connection } from "../api/live";
import { age, clock, moment } from "../lib/format";
import { goLive, moveCursor, useCursor, useDemo, useLive, useNow, useRun } from "../state/cluster";
import { useSpan } from "../state/span";
import { Button } from "../ui/controls";
import { DemoPlayer } from "./demo";
import { Scrubber } from "./scrubber";

export function Strip() {
  const cursor = useCursor();
  const run = useRun();
  const demo = useDemo() === "recorded";
  const { span: remembered } = useSpan();
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
          <time className="w-42 shrink-0 text-right whitespace-nowrap text-accent max-sm:hidden">{moment(cursor, true)}</time>
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
  gone: "disconnected",
  locked: "locked",
};

function State() {
  const cursor = useCursor();
  const now = useNow();
  const { connection, skewMs } = useLive();
  const demo = useDemo();
  const live = connection.state === "live";
  const past = live && cursor !== null;
  const ink = past ? "text-accent" : live ? "text-active" : connection.state === "gone" ? "text-failed" : "text-recovering";
  const played = demo === "recorded" && live;
  const word = played ? "demo" : past ? "past" : demo && live ? "demo" : WORDS[connection.state];
  const since = "since" in connection ? age(connection.since, now - skewMs) : "";
  return (
    <span role="status" className="flex min-w-30 shrink-0 items-center gap-2 whitespace-nowrap">
      <span aria-hidden className={`${ink} ${live && !past ? "breathing" : ""}`}>
        {past ? "◆" : live ? "●" : connection.state === "gone" ? "✕" : "○"}
      </span>
      <span>
        {word} {since && <span className="text-faint">{since}</span>}
        {live && !past && <span className="text-faint">{clock(now)}</span>}
      </span>
    </span>
  );
}
