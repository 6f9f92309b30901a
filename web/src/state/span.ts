/** From when to when the coordinator remembers. */
import { useQuery } from "@tanstack/react-query";
import { span as ask } from "../api/timeline";
import type { Span } from "../lib/scale";
import { useClock } from "./cluster";

const REFRESH_MS = 30_000;
const GROW_MS = 15_000;

/**
 * Null while it does not tell, with why. The end is taken from the clock in between: of a large
 * cluster the span costs the coordinator something.
 */
export function useSpan(): { span: Span | null; error: Error | null } {
  const now = useClock(GROW_MS);
  const { data, error } = useQuery({
    queryKey: ["timeline span"],
    queryFn: ({ signal }) => ask(signal),
    refetchInterval: (query) => (query.state.error ? false : REFRESH_MS),
    retry: false,
  });
  if (!data || data.to_ms <= data.from_ms) return { span: null, error };
  const to = Math.max(data.to_ms, Math.floor(now / GROW_MS) * GROW_MS);
  return { span: { from: data.from_ms, to: data.live ? to : data.to_ms }, error: null };
}
