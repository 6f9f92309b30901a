/** Log lines: time, level, writer, and the message as plain text. */
import { useEffect, useRef } from "react";
import type { LogEntry } from "../../api/types";
import { clock } from "../../lib/format";
import { cut, visible } from "../../lib/text";
import { lookOf } from "../../ui/state-mark";

const SIGNS: Record<string, string> = { error: "✕", warn: "▲", info: "·", debug: "·" };

/** The worker or the source that wrote a line. */
export function writerOf(entry: LogEntry): string {
  return entry.worker_id || entry.source;
}

export function LogLine({ entry, limit = 500 }: { entry: LogEntry; limit?: number }) {
  const look = lookOf(entry.level);
  const { head, hidden } = cut(entry.message, limit);
  return (
    <span className="flex gap-3 font-mono text-s leading-5 whitespace-pre">
      <time className="text-faint">
        {clock(entry.timestamp)}
        <span className="max-sm:hidden">{clock(entry.timestamp, true).slice(-4)}</span>
      </time>
      <span className={`${look.text} w-14 shrink-0 max-sm:w-auto`}>
        <span aria-hidden>{SIGNS[entry.level]} </span>
        <span className="max-sm:sr-only">{entry.level}</span>
      </span>
      <span className="w-24 shrink-0 truncate text-dim max-sm:w-18" title={writerOf(entry)}>
        {writerOf(entry)}
      </span>
      <span className={entry.level === "debug" ? "text-faint" : entry.level === "info" ? "" : look.text}>
        {visible(head).replaceAll("\n", "⏎ ")}
        {hidden > 0 && <span className="text-faint"> … {hidden.toLocaleString("en-GB")} more characters</span>}
      </span>
    </span>
  );
}

/** A short list of lines that shows the newest one unless the reader has scrolled up. */
export function LogLines({ entries }: { entries: readonly LogEntry[] }) {
  const region = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  const newest = entries[entries.length - 1]?.id;
  useEffect(() => {
    if (region.current && following.current) region.current.scrollTop = region.current.scrollHeight;
  }, [newest]);
  if (entries.length === 0) return <p className="text-faint">No lines yet.</p>;
  return (
    <div
      ref={region}
      role="region"
      aria-label="Log lines"
      // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex
      tabIndex={0}
      className="max-h-96 overflow-auto"
      onScroll={({ currentTarget: { scrollTop, clientHeight, scrollHeight } }) => {
        following.current = scrollTop + clientHeight > scrollHeight - 20;
      }}
    >
      {entries.map((entry) => (
        <LogLine key={entry.id} entry={entry} />
      ))}
    </div>
  );
}
