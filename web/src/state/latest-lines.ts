/** The newest log lines of a task or a worker: now, or as of the moment that is shown. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { api, bodyOf } from "../api/client";
import type { LogEntry } from "../api/types";
import { useCursor, useDemo } from "./cluster";
import { useDemoLines } from "./simulated";

const LINES = 50;
const REFRESH_MS = 3000;

export function useLines(filters: { task_id?: string; worker_id?: string }): { entries: readonly LogEntry[]; error: Error | null } {
  const cursor = useCursor();
  const demo = useDemo() === "recorded";
  const simulated = useDemoLines(cursor, filters, demo);
  const { data, error } = useQuery({
    queryKey: ["newest lines", filters, cursor],
    queryFn: ({ signal }) => bodyOf(api.GET("/api/logs", { params: { query: { ...filters, limit: LINES, until_ms: cursor } }, signal })),
    enabled: !demo,
    refetchInterval: cursor === null ? REFRESH_MS : false,
    placeholderData: keepPreviousData,
  });
  return demo ? { ...simulated, entries: simulated.entries.slice(-LINES) } : { entries: data?.toReversed() ?? [], error };
}
