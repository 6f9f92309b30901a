/** The newest log lines. */
import type { LogEntry } from "../../api/types";
import { useCursor, useDemo } from "../../state/cluster";
import { useDemoLines } from "../../state/simulated";
import { hrefTo } from "../../state/url";
import { Section } from "../../ui/page";
import { LogLines } from "../logs/log-lines";

const SHOWN = 14;

export function LatestLog({ lines: recorded }: { lines: readonly LogEntry[] }) {
  const demo = useDemo() === "recorded";
  const simulated = useDemoLines(useCursor(), {}, demo);
  const lines = demo ? simulated.entries.slice(-SHOWN) : recorded.toReversed();
  if (lines.length === 0) return null;
  return (
    <Section title="Log" className="mt-8" aside={<a href={hrefTo(["logs"])} className="hover:underline">all lines</a>}>
      <LogLines entries={lines} />
    </Section>
  );
}
