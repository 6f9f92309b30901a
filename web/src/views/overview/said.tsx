/** The newest log lines. */
import { useQuery } from "@tanstack/react-query";
import { list } from "../../api/client";
import type { LogEntry } from "../../api/types";
import { useCursor } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Section } from "../../ui/page";
import { LogLines } from "../logs/lines";

const SHOWN = 14;
const REFRESH_MS = 5000;

export function Said() {
  const cursor = useCursor();
  const { data } = useQuery({
    queryKey: ["newest lines", cursor],
    queryFn: ({ signal }) => list<LogEntry>("/logs", { limit: SHOWN, until_ms: cursor }, signal),
    refetchInterval: cursor === null ? REFRESH_MS : false,
    placeholderData: (before) => before,
  });
  if (!data?.items.length) return null;
  return (
    <Section title="Log" className="mt-8" aside={<a href={hrefTo(["logs"])} className="hover:underline">all lines</a>}>
      <LogLines entries={data.items.toReversed()} />
    </Section>
  );
}
