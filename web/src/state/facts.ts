/** The newest facts of some kinds: now, or as of the moment that is shown. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { api, bodyOf } from "../api/client";
import type { Fact } from "../api/types";
import { useCursor, useTimeline } from "./cluster";

export function useFacts(kinds: string, limit: number, refreshMs: number): readonly Fact[] {
  const cursor = useCursor();
  const timeline = useTimeline();
  const { data } = useQuery({
    queryKey: ["facts", kinds, limit, cursor],
    queryFn: ({ signal }) =>
      cursor === null
        ? bodyOf(api.GET("/api/events", { params: { query: { newest: true, kinds, limit } }, signal }))
        : timeline.facts({ time_ms: cursor, kinds, limit }, signal),
    refetchInterval: cursor === null ? refreshMs : false,
    placeholderData: keepPreviousData,
    retry: false,
  });
  return data ?? NONE;
}

const NONE: readonly Fact[] = [];
