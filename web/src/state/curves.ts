/**
 * The curves of a task: which there are, their points in a window, and the markers on them.
 *
 * While a task runs, its newest points are loaded several times a second, all visible curves with one request;
 * the older points are loaded again less often, since they do not change. The browser stops both while the page
 * is hidden. A zoomed window is loaded with its neighbourhood, so that moving it shows points at once.
 */
import { keepPreviousData, useQueries, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { CurveAxis } from "../api/timeline";
import { extended, NO_POINTS, padded, windowText, type Marker, type Points } from "../lib/curves";
import type { Span } from "../lib/scale";
import { useTimeline } from "./cluster";
import { useKept } from "./kept";
import { useSettled } from "./settled";

const LIST_MS = 2000;
const WHOLE_MS = 10_000;
const WINDOW_MS = 1000;
const NEWEST_MS = 300;
const NEWEST_POINTS = 200;

/** The curves of a task with their last values, and the axes that are recorded. */
export function useCurves(task: string, live: boolean) {
  const timeline = useTimeline();
  return useQuery({
    queryKey: ["curves", task],
    queryFn: ({ signal }) => timeline.curves(task, signal),
    enabled: task !== "",
    refetchInterval: live ? LIST_MS : false,
    placeholderData: keepPreviousData,
    retry: false,
  });
}

const NO_MARKERS: readonly Marker[] = [];

export function useMarkers(task: string, live: boolean): readonly Marker[] {
  const timeline = useTimeline();
  const { data } = useQuery({
    queryKey: ["curve markers", task],
    queryFn: ({ signal }) => timeline.curveMarkers(task, signal),
    enabled: task !== "",
    refetchInterval: live ? LIST_MS : false,
    retry: false,
  });
  return data?.markers ?? NO_MARKERS;
}

export interface WantedPoints {
  task: string;
  /** The visible curves, and the width of each chart in pixels. */
  wanted: ReadonlyMap<string, number>;
  axis: CurveAxis;
  window: Span | null;
  worker: string;
  /** Whether newer points may appear in the window. */
  live: boolean;
  /** Changes when a recovery undoes steps: then points that are loaded are not part of the run any more. */
  undone: number;
}

/** The points of each visible curve, by name. */
export function useCurvePoints({ task, wanted, axis, window, worker, live, undone }: WantedPoints): { points: ReadonlyMap<string, Points>; error: Error | null; loading: boolean } {
  const timeline = useTimeline();
  const names = [...wanted.keys()].toSorted();
  const range = useSettled(window ? padded(window) : null, windowText(window));
  const scale = range ? 2 : 1;
  const windows = useQueries({
    queries: names.map((name) => ({
      queryKey: ["curve", task, name, axis, worker, wanted.get(name), range?.from, range?.to, undone],
      queryFn: async ({ signal }: { signal: AbortSignal }) =>
        (await timeline.curvePoints({ task, name: [name], x: axis, worker, points: wanted.get(name)! * scale, ...range }, signal)).curves[0] ?? NO_POINTS,
      refetchInterval: live ? (window ? WINDOW_MS : WHOLE_MS) : (false as const),
      staleTime: live ? 0 : Infinity,
      gcTime: 60_000,
      retry: false,
    })),
  });
  const shown = useKept(names.map((name) => `${task} ${axis} ${worker} ${name}`), windows.map(({ data }) => data));
  const ends = windows.map(({ data }) => data?.x.at(-1)).filter((end) => end !== undefined);
  const since = ends.length > 0 ? Math.min(...ends) : undefined;
  const newest = useQuery({
    queryKey: ["newest points", task, axis, worker, undone, since, ...names],
    queryFn: ({ signal }) => timeline.curvePoints({ task, name: names, x: axis, worker, points: NEWEST_POINTS, from: since ?? 0 }, signal),
    enabled: live && window === null && since !== undefined,
    refetchInterval: NEWEST_MS,
    gcTime: 0,
    retry: false,
  }).data;
  const points = useMemo(
    () => new Map(names.flatMap((name, index) => {
      const whole = shown[index];
      const newer = live && window === null ? newest?.curves.find((each) => each.name === name) : undefined;
      return whole ? [[name, newer ? extended(whole, newer) : whole] as const] : [];
    })),
    // The lists are new in each render, their items are not.
    // oxlint-disable-next-line react/exhaustive-deps
    [names.join("\n"), newest, live, window === null, ...shown],
  );
  return { points, error: windows.find(({ error }) => error)?.error ?? null, loading: windows.some(({ isPending }) => isPending) };
}
