/** The lane of one worker over the last minute. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { momentText, useNow, useTimeline } from "../../state/cluster";
import { go } from "../../state/url";
import { Section } from "../../ui/page";
import { LaneChart } from "./lane-chart";

const SHOWN_MS = 60_000;
const REFRESH_MS = 3000;

export function WorkerLane({ node }: { node: string }) {
  const now = useNow();
  const timeline = useTimeline();
  const loadedAt = Math.floor(now / REFRESH_MS) * REFRESH_MS;
  const { data } = useQuery({
    queryKey: ["worker lane", node, loadedAt],
    queryFn: ({ signal }) => timeline.lanes({ from_ms: loadedAt - SHOWN_MS, to_ms: loadedAt + REFRESH_MS, node, limit: 1 }, signal),
    placeholderData: keepPreviousData,
    retry: false,
  });
  if (!data?.lanes.length) return null;
  const span = { from: now - SHOWN_MS, to: now };
  const open = (params: Record<string, string>) => go(["timeline"], { node, ...params });
  return (
    <Section title="Last minute" className="mt-8">
      <div className="-mx-6 max-sm:-mx-4">
        <LaneChart
          lanes={data.lanes}
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
