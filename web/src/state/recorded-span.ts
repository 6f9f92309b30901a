/** The span of time that the timeline covers. */
import { useQuery } from "@tanstack/react-query";
import type { Span } from "../lib/scale";
import { useClock, useTimeline } from "./cluster";

const REFRESH_MS = 30_000;
const GRID_MS = 15_000;

/** Null until the coordinator answers. Between answers the end follows the clock: counting a large log is slow. */
export function useSpan(): { span: Span | null; error: Error | null } {
  const now = useClock("quarterMinute");
  const timeline = useTimeline();
  const { data, error } = useQuery({
    queryKey: ["timeline span"],
    queryFn: ({ signal }) => timeline.span(signal),
    refetchInterval: (query) => (query.state.error ? false : REFRESH_MS),
    retry: false,
  });
  if (!data || data.to_ms <= data.from_ms) return { span: null, error };
  const to = Math.max(data.to_ms, Math.floor(now / GRID_MS) * GRID_MS);
  return { span: { from: data.from_ms, to: data.live ? to : data.to_ms }, error: null };
}
