/** Playback: moves the time cursor at a speed, or to the next event that matches a condition. */
import { useEffect, useRef, useState } from "react";
import type { Span } from "../../lib/scale";
import { moveCursor, useCursor, useRun, useTimeline } from "../../state/cluster";
import { useKeys } from "../../state/keys";
import { change, useParam } from "../../state/url";
import { Button, Choice, Field } from "../../ui/controls";

const TICK_MS = 200;
const SPEEDS = [["1", "1×"], ["5", "5×"], ["20", "20×"], ["100", "100×"]] as const;

export function Player({ bounds }: { bounds: Span }) {
  const cursor = useCursor();
  const timeline = useTimeline();
  const archived = useRun() !== "";
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState("5");
  const [predicate, setPredicate] = useParam("find");
  const [error, setError] = useState("");
  const latest = useRef({ cursor, bounds });
  useEffect(() => {
    latest.current = { cursor, bounds };
  });
  useEffect(() => {
    if (!playing) return;
    const timer = setInterval(() => {
      const { cursor: at, bounds: within } = latest.current;
      const next = (at ?? within.from) + TICK_MS * Number(speed);
      if (next >= within.to) setPlaying(false);
      moveCursor(next < within.to ? next : archived ? within.to : null);
    }, TICK_MS);
    return () => clearInterval(timer);
  }, [playing, speed, archived]);
  const step = (direction: "next" | "previous") => {
    const from = cursor ?? bounds.to;
    void timeline.seek({ predicate, from_ms: from, direction }).then(
      ({ at_ms, ref }) => {
        setError("");
        moveCursor(at_ms);
        if (predicate) change({ event: ref });
      },
      (failure: Error) => setError(failure.message),
    );
  };
  const toggle = () => {
    if (!playing && cursor === null) moveCursor(Math.max(bounds.from, bounds.to - 60_000));
    setPlaying(!playing);
  };
  useKeys({ " ": toggle, ",": () => step("previous"), ".": () => step("next") });
  return (
    <div className="flex flex-wrap items-center gap-1">
      <Field
        label="Find: kind=WorkerLost"
        data-search
        title={error || "A condition, such as kind=WorkerLost or step>100. ‹ and › go to the previous and the next match."}
        aria-invalid={error !== ""}
        value={predicate}
        onChange={(event) => setPredicate(event.target.value)}
        onKeyDown={(event) => event.key === "Enter" && step(event.shiftKey ? "next" : "previous")}
        className={`w-44 ${error ? "text-failed!" : ""}`}
      />
      <Button onClick={() => step("previous")} aria-label="Previous event" title="Previous event (,)">‹</Button>
      <Button onClick={toggle} aria-pressed={playing} title="Play or pause (Space)" className="w-16 justify-center">{playing ? "Pause" : "Play"}</Button>
      <Button onClick={() => step("next")} aria-label="Next event" title="Next event (.)">›</Button>
      <Choice label="Speed" value={speed} onChange={setSpeed} options={SPEEDS} />
    </div>
  );
}
