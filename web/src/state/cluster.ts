/** The cluster as the views show it: live, or at the past moment that the time cursor selects. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo, useSyncExternalStore } from "react";
import { ApiError } from "../api/client";
import { live, type Live } from "../api/live";
import { fromDashboard, type Cluster } from "../api/patches";
import { DEMO, timelineOf, type Timeline } from "../api/timeline";
import { useBrowserTime, type Period } from "./clock";
import { change, usePlace } from "./url";

export function useLive(): Live {
  return useSyncExternalStore(live.subscribe, live.read);
}

/** The past moment that is shown, in Unix milliseconds; null when live. */
export function useCursor(): number | null {
  const text = usePlace().params.t;
  const moment = Number(text);
  return text && Number.isFinite(moment) ? moment : null;
}

/** The archived run that is shown; empty for the coordinator's own log. */
export function useRun(): string {
  return usePlace().params.run ?? "";
}

/** The timeline endpoints of the run that is shown. */
export function useTimeline(): Timeline {
  const run = useRun();
  return useMemo(() => timelineOf(run), [run]);
}

/** Whether the data is simulated: by a coordinator in demo mode, or in the recorded demo. */
export function useDemo(): "" | "served" | "recorded" {
  const { cluster } = useLive();
  const recorded = useRun() === DEMO;
  return recorded ? "recorded" : cluster?.coordinator?.mode === "demo" ? "served" : "";
}

/** A moment as the address holds it: rounded up, so that an event at that moment has happened. */
export function momentText(atMs: number): string {
  return String(Math.ceil(atMs));
}

/** Shows the live cluster again, also after an archived run. */
export function goLive(): void {
  change({ t: "", run: "" }, "push");
}

/** Shows an archived run at a moment. */
export function openRun(name: string, atMs: number): void {
  change({ run: name, t: momentText(atMs), from: "", to: "", event: "" }, "push");
}

/** Shows a past moment, or the live cluster. */
export function moveCursor(atMs: number | null, how: "push" | "replace" = "replace"): void {
  change({ t: atMs === null ? "" : momentText(atMs) }, how);
}

/** First part of the query keys of everything that depends on the cursor: the state and the lanes. */
export const MOMENT_KEY = "at";

export interface ShownCluster {
  cluster: Cluster | null;
  /** Null when live. */
  cursor: number | null;
  /** False while the state of an earlier cursor position is still shown. */
  fresh: boolean;
  error: ApiError | null;
  loading: boolean;
}

export function useCluster(): ShownCluster {
  const cursor = useCursor();
  const timeline = useTimeline();
  const { cluster } = useLive();
  const past = useQuery({
    queryKey: [MOMENT_KEY, cursor],
    queryFn: ({ signal }) => timeline.at(cursor ?? 0, signal),
    enabled: cursor !== null,
    placeholderData: keepPreviousData,
    staleTime: Infinity,
    retry: false,
    select: (response) => fromDashboard(response, response.as_of.time_ms),
  });
  if (cursor === null) {
    return { cluster, cursor, fresh: true, error: null, loading: cluster === null };
  }
  const error = past.error instanceof ApiError ? past.error : null;
  const fresh = past.isSuccess && !past.isPlaceholderData;
  return { cluster: past.data ?? null, cursor, fresh, error, loading: past.isPending };
}

/** The coordinator's clock. */
export function useClock(period: Period = "second"): number {
  const { skewMs } = useLive();
  const now = useBrowserTime(period);
  return now + (Math.abs(skewMs) > 1000 ? skewMs : 0);
}

/** The moment that is shown: the coordinator's clock, or the time cursor. */
export function useNow(period: Period = "second"): number {
  const now = useClock(period);
  return useCursor() ?? now;
}
