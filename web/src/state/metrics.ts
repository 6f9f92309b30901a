/** The metrics of the last minutes: loaded once and extended by the live stream, or as recorded before a moment. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useReducer } from "react";
import { api, bodyOf } from "../api/client";
import { live } from "../api/live";
import type { History, Metrics } from "../api/types";
import { useCluster, useDemo, useLive, useTimeline } from "./cluster";
import { simulatedHistory } from "./simulated";

export const KEPT = 900;

const NONE: History = {
  at: [],
  checkpoint_throughput: [],
  coordinator_rps: [],
  active_workers: [],
  total_workers: [],
  barrier_latency_p99: [],
  shard_assignment_time: [],
};

/** The history with one more sample, at most `KEPT`. */
export function grown(before: History, at: number, metrics: Metrics): History {
  const add = <Value>(values: Value[], value: Value) => [...values.slice(1 - KEPT), value];
  return {
    at: add(before.at, at),
    checkpoint_throughput: add(before.checkpoint_throughput, metrics.checkpoint_throughput),
    coordinator_rps: add(before.coordinator_rps, metrics.coordinator_rps),
    active_workers: add(before.active_workers, metrics.active_workers),
    total_workers: add(before.total_workers, metrics.total_workers),
    barrier_latency_p99: add(before.barrier_latency_p99, metrics.barrier_latency_p99),
    shard_assignment_time: add(before.shard_assignment_time, metrics.shard_assignment_time),
  };
}

type Step = { loaded: History } | { at: number; metrics: Metrics };

function extended(before: History, step: Step): History {
  if ("loaded" in step) return step.loaded;
  const newest = before.at[before.at.length - 1] ?? 0;
  return step.at - newest < 500 ? before : grown(before, step.at, step.metrics);
}

export function useHistory(): History {
  const { fresh, cursor } = useCluster();
  const present = useLiveHistory();
  const timeline = useTimeline();
  const past = useQuery({
    queryKey: ["metrics before", cursor],
    queryFn: ({ signal }) => timeline.metrics(cursor ?? 0, signal),
    // The state of the moment is loaded first.
    enabled: cursor !== null && fresh,
    placeholderData: keepPreviousData,
    staleTime: Infinity,
    retry: false,
  });
  const demo = useDemo() === "recorded";
  const recorded = useMemo(() => (past.data && demo ? simulatedHistory(past.data) : (past.data ?? NONE)), [past.data, demo]);
  return cursor === null ? present : recorded;
}

function useLiveHistory(): History {
  const [history, advance] = useReducer(extended, NONE);
  const incarnation = useLive().cluster?.coordinator?.incarnation ?? 0;
  const { data } = useQuery({
    queryKey: ["metrics history", incarnation],
    queryFn: ({ signal }) => bodyOf(api.GET("/api/metrics/history", { signal })),
    staleTime: Infinity,
    gcTime: 0,
  });
  useEffect(() => {
    if (data) advance({ loaded: data });
  }, [data]);
  useEffect(() => {
    const note = () => {
      const { cluster } = live.read();
      if (cluster?.metrics) advance({ at: cluster.at, metrics: cluster.metrics });
    };
    return live.subscribe(note);
  }, []);
  return history;
}
