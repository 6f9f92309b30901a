/** The cluster as the views see it: live, or at the moment that the time cursor stands on. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState, useSyncExternalStore } from "react";
import { ApiError } from "../api/client";
import { live, type Live } from "../api/live";
import { fromDashboard, type Cluster } from "../api/patches";
import { at, DEMO } from "../api/timeline";
import { change, usePlace } from "./url";

export function useLive(): Live {
  return useSyncExternalStore(live.subscribe, live.read);
}

/** The moment of the past that is shown, in Unix milliseconds; null is live. */
export function useCursor(): number | null {
  const text = usePlace().params.t;
  const moment = Number(text);
  return text && Number.isFinite(moment) ? moment : null;
}

/** The archived run that is looked at; empty for the coordinator's own log. */
export function useRun(): string {
  return usePlace().params.run ?? "";
}

/** Whether what is shown is made up: a demo that the coordinator serves, or the recorded one. */
export function useDemo(): "" | "served" | "recorded" {
  const { cluster } = useLive();
  const recorded = useRun() === DEMO;
  return recorded ? "recorded" : cluster?.coordinator?.mode === "demo" ? "served" : "";
}

/** A moment as the address holds it: the first whole millisecond in which what happened then has. */
export function momentText(atMs: number): string {
  return String(Math.ceil(atMs));
}

/** Leaves the past, also that of an archived run. */
export function goLive(): void {
  change({ t: "", run: "" }, "push");
}

/** Opens an archived run at a moment. */
export function openRun(name: string, atMs: number): void {
  change({ run: name, t: momentText(atMs), from: "", to: "", event: "" }, "push");
}

/** Shows a moment of the past, or what is live. */
export function moveCursor(atMs: number | null, how: "push" | "replace" = "replace"): void {
  change({ t: atMs === null ? "" : momentText(atMs) }, how);
}

/** Begins the keys of what is asked for to show a moment: its state, and the lanes around it. */
export const STATE = "at";

export interface Seen {
  cluster: Cluster | null;
  /** Null when live. */
  cursor: number | null;
  /** Whether it is of that moment already, and no longer of the one before. */
  fresh: boolean;
  fault: ApiError | null;
  loading: boolean;
}

/** What is to be shown, and from when. */
export function useCluster(): Seen {
  const cursor = useCursor();
  const { cluster } = useLive();
  const past = useQuery({
    queryKey: [STATE, cursor],
    queryFn: ({ signal }) => at({ time_ms: cursor ?? 0 }, signal),
    enabled: cursor !== null,
    placeholderData: keepPreviousData,
    staleTime: Infinity,
    retry: false,
    select: (told) => fromDashboard(told, told.as_of.time_ms),
  });
  if (cursor === null) {
    return { cluster, cursor, fresh: true, fault: null, loading: cluster === null };
  }
  const fault = past.error instanceof ApiError ? past.error : null;
  const fresh = past.isSuccess && !past.isPlaceholderData;
  return { cluster: past.data ?? null, cursor, fresh, fault, loading: past.isPending };
}

/** The coordinator's clock, ticking. */
export function useClock(everyMs = 1000): number {
  const { skewMs } = useLive();
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now + (Math.abs(skewMs) > 1000 ? skewMs : 0);
}

/** The moment that is shown: what the clock says, or that of the past. */
export function useNow(everyMs = 1000): number {
  const now = useClock(everyMs);
  return useCursor() ?? now;
}
