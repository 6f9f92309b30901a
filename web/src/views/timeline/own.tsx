/** What one worker did in the last minute, as its lane. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { lanes } from "../../api/timeline";
import { momentText, useNow } from "../../state/cluster";
import { go } from "../../state/url";
import { Section } from "../../ui/page";
import { LaneChart } from "./lanes";

const SEEN_MS = 60_000;
const REFRESH_MS = 3000;

export function OwnLane({ node }: { node: string }) {
  const now = useNow();
  const asked = Math.floor(now / REFRESH_MS) * REFRESH_MS;
  const { data } = useQuery({
    queryKey: ["own lane", node, asked],
    queryFn: ({ signal }) => lanes({ from_ms: asked - SEEN_MS, to_ms: asked + REFRESH_MS, limit: 200 }, signal),
    placeholderData: keepPreviousData,
    retry: false,
  });
  const own = useMemo(() => (data?.lanes ?? []).filter((lane) => lane.node === node), [data, node]);
  if (own.length === 0) return null;
  const span = { from: now - SEEN_MS, to: now };
  const open = (params: Record<string, string>) => go(["timeline"], { node, ...params });
  return (
    <Section title="The last minute" className="mt-8">
      <div className="-mx-6 max-sm:-mx-4">
        <LaneChart
          lanes={own}
          span={span}
          bounds={span}
          now={now}
          cursor={null}
          chosen=""
          onSpan={({ from, to }) => open({ from: String(Math.round(from)), to: String(Math.round(to)) })}
          onEvent={(event) => open({ event })}
          onMoment={(at) => open({ t: momentText(at) })}
        />
      </div>
    </Section>
  );
}
