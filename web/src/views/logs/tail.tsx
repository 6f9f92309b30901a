/** A long list of lines. It follows new lines at the end, and pauses when scrolled up; only visible lines are rendered. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useLayoutEffect, useRef, useState, type ReactNode } from "react";
import type { LogEntry } from "../../api/types";
import { count } from "../../lib/format";
import { Button } from "../../ui/controls";
import { LogDrawer } from "./line-drawer";
import { LogLine } from "./log-lines";

const LINE_PX = 20;
const AT_END_PX = 40;

export function Tail({ entries, arrived, following, children }: {
  entries: readonly LogEntry[];
  arrived: number;
  following: boolean;
  children: ReactNode;
}) {
  const scroller = useRef<HTMLDivElement>(null);
  const [paused, setPaused] = useState(false);
  const [seenAt, setSeenAt] = useState(arrived);
  const [chosen, setChosen] = useState<LogEntry | null>(null);
  const virtual = useVirtualizer({
    count: entries.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => LINE_PX,
    overscan: 20,
  });
  const toEnd = () => scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  useLayoutEffect(() => {
    if (!paused) toEnd();
  }, [entries, paused]);
  useEffect(() => {
    if (!paused) setSeenAt(arrived);
  }, [arrived, paused]);
  const scrolled = () => {
    const element = scroller.current;
    if (!element) return;
    const rest = element.scrollHeight - element.scrollTop - element.clientHeight;
    setPaused(rest > AT_END_PX);
  };
  const fresh = arrived - seenAt;
  return (
    <div className="relative flex h-full min-h-0 flex-1">
      <div
        ref={scroller}
        role="log"
        aria-label="Log lines"
        aria-live="off"
        // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex
        tabIndex={0}
        onScroll={scrolled}
        className="min-h-0 min-w-0 flex-1 overflow-auto px-6 max-sm:px-4"
      >
        <div className="py-1 text-s">{children}</div>
        <div className="relative min-w-fit" style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map(({ index, start }) => {
            const entry = entries[index];
            return entry === undefined ? null : (
              <button
                key={entry.id}
                type="button"
                onClick={() => setChosen(entry)}
                className="absolute left-0 min-w-full text-left hover:bg-hover"
                style={{ top: start, height: LINE_PX }}
              >
                <LogLine entry={entry} />
              </button>
            );
          })}
        </div>
      </div>
      {following && paused && (
        <Button tone="main" className="absolute! right-8 bottom-4 shadow-sm" onClick={() => { setPaused(false); toEnd(); }}>
          {fresh > 0 ? `${count(fresh)} new ↓` : "Follow ↓"}
        </Button>
      )}
      {chosen && <LogDrawer entry={chosen} close={() => setChosen(null)} />}
    </div>
  );
}
