/** The newest log lines. */
import type { LogEntry } from "../../api/types";
import { hrefTo } from "../../state/url";
import { Section } from "../../ui/page";
import { LogLines } from "../logs/lines";

export function Said({ lines }: { lines: readonly LogEntry[] }) {
  if (lines.length === 0) return null;
  return (
    <Section title="Log" className="mt-8" aside={<a href={hrefTo(["logs"])} className="hover:underline">all lines</a>}>
      <LogLines entries={lines.toReversed()} />
    </Section>
  );
}
