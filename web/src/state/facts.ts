/** The newest facts of some kinds: of now, or as of the moment that is shown. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { list } from "../api/client";
import { facts } from "../api/timeline";
import type { Fact } from "../api/types";
import { useCursor } from "./cluster";

export function useFacts(kinds: string, limit: number, refreshMs: number): readonly Fact[] {
  const cursor = useCursor();
  const { data } = useQuery({
    queryKey: ["facts", kinds, limit, cursor],
    queryFn: async ({ signal }) =>
      cursor === null
        ? (await list<Fact>("/events", { newest: true, kinds, limit }, signal)).items
        : facts({ time_ms: cursor, kinds, limit }, signal),
    refetchInterval: cursor === null ? refreshMs : false,
    placeholderData: keepPreviousData,
    retry: false,
  });
  return data ?? NONE;
}

const NONE: readonly Fact[] = [];
