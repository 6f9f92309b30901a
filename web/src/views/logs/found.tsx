/** The beginning of what is loaded, and the way to what is older. */
import { count } from "../../lib/format";
import type { LogFeed, Lines } from "../../state/logs";

export function Found({ feed, lines }: { feed: LogFeed; lines: Lines }) {
  if (!lines.older) return <span className="text-faint">the beginning of the log</span>;
  return (
    <button
      type="button"
      disabled={lines.loading}
      onClick={() => void feed.loadOlder()}
      className="text-accent hover:underline disabled:text-faint"
    >
      {lines.loading ? "loading…" : `older than these ${count(lines.entries.length)} lines`}
    </button>
  );
}
