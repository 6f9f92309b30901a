/** What a comparison shows of each run: its curves, settings, markers, and the points of the visible charts. */
import { useQueries } from "@tanstack/react-query";
import { useMemo } from "react";
import { timelineOf, type Curve, type CurveAxis, type CurveSettings } from "../api/timeline";
import { padded, windowText, type Marker, type Points } from "../lib/curves";
import type { Span } from "../lib/scale";
import { useKept } from "./kept";
import { useSettled } from "./settled";

const REFRESH_MS = 2000;
const NO_MARKERS: readonly Marker[] = [];
const NO_AXES: readonly CurveAxis[] = [];

export interface ComparedRun {
  task: string;
  run: string;
  curves: readonly Curve[] | undefined;
  axes: readonly CurveAxis[];
  /** The first moment of the curves, from which elapsed time counts. */
  fromMs: number;
  undone: number;
  settings: CurveSettings | undefined;
  markers: readonly Marker[];
  error: Error | null;
}

/** Each run with what is loaded of it; the same list while nothing changes. */
export function useComparedRuns(pinned: readonly { task: string; run: string }[], live: boolean): readonly ComparedRun[] {
  const repeated = { refetchInterval: live ? REFRESH_MS : (false as const), retry: false };
  const curves = useQueries({
    queries: pinned.map(({ task, run }) => ({ queryKey: ["compared curves", task, run], queryFn: ({ signal }: { signal: AbortSignal }) => timelineOf(run).curves(task, signal), ...repeated })),
  });
  const settings = useQueries({
    queries: pinned.map(({ task, run }) => ({ queryKey: ["compared settings", task, run], queryFn: ({ signal }: { signal: AbortSignal }) => timelineOf(run).curveSettings(task, signal) as Promise<CurveSettings>, ...repeated })),
  });
  const markers = useQueries({
    queries: pinned.map(({ task, run }) => ({ queryKey: ["compared markers", task, run], queryFn: ({ signal }: { signal: AbortSignal }) => timelineOf(run).curveMarkers(task, signal), ...repeated })),
  });
  const loaded = [...curves, ...settings, ...markers].flatMap(({ data, error }) => [data, error]);
  return useMemo(
    () => pinned.map(({ task, run }, index) => ({
      task,
      run,
      curves: curves[index]?.data?.curves,
      axes: curves[index]?.data?.axes ?? NO_AXES,
      fromMs: curves[index]?.data?.from_ms ?? 0,
      undone: curves[index]?.data?.undone_steps ?? 0,
      settings: settings[index]?.data,
      markers: markers[index]?.data?.markers ?? NO_MARKERS,
      error: curves[index]?.error ?? settings[index]?.error ?? null,
    })),
    // The lists of queries are new in each render, their answers are not.
    // oxlint-disable-next-line react/exhaustive-deps
    [pinned, ...loaded],
  );
}

interface Wanted {
  runs: readonly ComparedRun[];
  wanted: ReadonlyMap<string, number>;
  axis: CurveAxis;
  window: Span | null;
  live: boolean;
}

/** The points of the visible charts, for each run by name; on the time axis as seconds since the run's start. */
export function useComparedPoints({ runs, wanted, axis, window, live }: Wanted): { points: readonly ReadonlyMap<string, Points>[]; errors: readonly (Error | null)[] } {
  const settled = useSettled(window ? padded(window) : null, windowText(window));
  const width = Math.max(0, ...wanted.values()) * (settled ? 2 : 1);
  const queries = useQueries({
    queries: runs.map(({ task, run, curves, fromMs, undone, axes }) => {
      const names = [...wanted.keys()].filter((name) => curves?.some((curve) => curve.name === name)).toSorted();
      const toAxis = (at: number) => (axis === "time" ? fromMs + at * 1000 : at);
      const range = settled ? { from: toAxis(settled.from), to: toAxis(settled.to) } : {};
      return {
        queryKey: ["compared points", task, run, axis, width, settled?.from, settled?.to, undone, fromMs, ...names],
        queryFn: async ({ signal }: { signal: AbortSignal }) => {
          const answer = await timelineOf(run).curvePoints({ task, name: names, x: axis, points: width, ...range }, signal);
          return new Map(answer.curves.map((each) => [each.name, axis === "time" ? sinceStart(each, fromMs) : each] as const));
        },
        enabled: names.length > 0 && axes.includes(axis),
        structuralSharing: false as const,
        refetchInterval: live ? REFRESH_MS : (false as const),
        retry: false,
      };
    }),
  });
  const points = useKept(runs.map(({ task, run }) => `${task}@${run} ${axis}`), queries.map(({ data }) => data)).map((data) => data ?? NONE);
  return {
    // oxlint-disable-next-line react/exhaustive-deps
    points: useMemo(() => points, [runs, ...points]),
    errors: queries.map(({ error }) => error),
  };
}

const NONE: ReadonlyMap<string, Points> = new Map();

function sinceStart<P extends Points>(points: P, fromMs: number): P {
  const seconds = (places: readonly number[]) => places.map((at) => (at - fromMs) / 1000);
  return { ...points, x: seconds(points.x), not_finite: seconds(points.not_finite) };
}
