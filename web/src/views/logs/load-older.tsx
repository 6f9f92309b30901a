/** The button above the lines that loads older ones. */
import { count } from "../../lib/format";
import type { LogFeed, LogState } from "../../state/log-feed";

export function LoadOlder({ feed, log }: { feed: LogFeed; log: LogState }) {
  if (!log.older) return <span className="text-faint">beginning of the log</span>;
  return (
    <button
      type="button"
      disabled={log.loading}
      onClick={() => void feed.loadOlder()}
      className="text-accent hover:underline disabled:text-faint"
    >
      {log.loading ? "loading…" : `load lines older than these ${count(log.entries.length)}`}
    </button>
  );
}
