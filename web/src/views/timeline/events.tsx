/**
 * The events of the visible span as a list, from the time cursor on. It has the same content as the lanes,
 * for keyboards and screen readers.
 */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useRef } from "react";
import { clock, count } from "../../lib/format";
import type { Span } from "../../lib/scale";
import { visible } from "../../lib/text";
import { useCluster, useTimeline } from "../../state/cluster";
import { useParam } from "../../state/url";
import { Field } from "../../ui/controls";
import { ErrorMessage } from "../../ui/placeholders";
import { following, rounded } from "./visible-span";

const LIMIT = 200;
const LINE_PX = 24;

export function Events({ span, cursor, task, node, chosen, onEvent }: {
  span: Span;
  cursor: number | null;
  task: string;
  node: string;
  chosen: string;
  onEvent: (ref: string) => void;
}) {
  const [kind, setKind] = useParam("kind");
  const { fresh } = useCluster();
  const timeline = useTimeline();
  const scroller = useRef<HTMLDivElement>(null);
  const range = rounded(following(span, cursor));
  const { data, error } = useQuery({
    queryKey: ["timeline events", range.from, range.to, task, node, kind],
    queryFn: ({ signal }) => timeline.events({ from_ms: range.from, to_ms: range.to, task, node, kind, limit: LIMIT }, signal),
    // The state of the moment is loaded first.
    enabled: fresh,
    placeholderData: keepPreviousData,
    retry: false,
  });
  const shown = data?.items ?? [];
  const virtual = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => LINE_PX,
    overscan: 10,
  });
  return (
    <section aria-label="Events" className="flex min-h-0 flex-1 flex-col border-t border-line">
      <header className="flex items-center gap-3 px-6 py-2 max-sm:px-4">
        <h2 className="font-semibold">Events</h2>
        <span className="text-s text-faint">{cursor !== null && "from the time cursor on, "}{count(shown.length)}{data?.next && " or more; zoom in to see all"}</span>
        <Field label="Kinds: WorkerLost, …" value={kind} onChange={(event) => setKind(event.target.value)} className="ml-auto w-56" />
      </header>
      {error && <div className="px-6"><ErrorMessage error={error} /></div>}
      {/* oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
      <div ref={scroller} role="region" aria-label="List of events" tabIndex={0} className="min-h-0 flex-1 overflow-auto px-6 pb-4 max-sm:px-4">
        <ul className="relative" style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map(({ index, start }) => {
            const event = shown[index]!;
            return (
              <li key={event.ref} className="absolute inset-x-0" style={{ top: start, height: LINE_PX }}>
                <button
                  type="button"
                  onClick={() => onEvent(event.ref)}
                  className={`grid h-full w-full grid-cols-[6.5rem_10rem_12rem_minmax(0,1fr)] items-center gap-3 text-left hover:bg-hover max-md:grid-cols-[6.5rem_minmax(0,1fr)] ${event.ref === chosen ? "bg-chosen" : ""}`}
                >
                  <time className="text-faint">{clock(event.at_ms, true)}</time>
                  <span className="truncate text-dim max-md:hidden">{event.node}</span>
                  <span className="truncate max-md:hidden">{event.kind}</span>
                  <span className="truncate text-dim">{visible(event.summary)}</span>
                </button>
              </li>
            );
          })}
        </ul>
      </div>
    </section>
  );
}
