/**
 * Data of the recorded demo that an archived run does not have: metrics of the coordinator, log lines and
 * samples. They are simulated like the rest of the demo, and the same moment always shows the same values.
 */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import type { TimelineEvent } from "../api/timeline";
import type { History, LogEntry, Metrics, Sample, Shard } from "../api/types";
import { useTimeline } from "./cluster";

const LOOK_BACK_MS = 60_000;
const EVENTS = 1000;
const SHOWN_SAMPLES = 24;
const SAMPLES_EACH = 3;
const CLASSES = ["rings", "stripes", "waves", "slope"] as const;
/** Kinds of events that a coordinator or a worker also writes to its log. */
const LOGGED = [
  "WorkerRegistered", "WorkerLost", "WorkerExited", "GenerationChanged", "TaskStateChanged", "RecoveryChosen",
  "CheckpointCommitted", "CheckpointFailed", "BarrierReleased", "AgentRegistered", "AgentLost", "StepFinished",
].join();

/** A pseudo-random number from 0 to 1 for a seed. */
export function noise(seed: number): number {
  const mixed = Math.imul(Math.floor(seed) ^ 0x9e3779b9, 0x85ebca6b);
  return ((mixed ^ (mixed >>> 13)) >>> 0) / 2 ** 32;
}

/** Each worker sends a heartbeat and a few messages per second. */
const requestsAt = (at: number, workers: number) => workers * (2.6 + 0.5 * noise(at / 1000));
const assignmentAt = (at: number, workers: number) => (workers === 0 ? null : 0.08 + workers * 0.004 + 0.05 * noise(at / 15_000));

/** Values for minutes without a checkpoint or a barrier. */
const throughputAt = (at: number, workers: number) => (workers === 0 ? null : 1.6 + 0.4 * noise(at / 30_000));
const latencyAt = (at: number, workers: number) => (workers === 0 ? null : 24 + 8 * noise(at / 20_000));

export function simulatedMetrics(metrics: Metrics, at: number): Metrics {
  const workers = metrics.total_workers;
  return {
    ...metrics,
    coordinator_rps: requestsAt(at, workers),
    shard_assignment_time: assignmentAt(at, workers),
    checkpoint_throughput: metrics.checkpoint_throughput ?? throughputAt(at, workers),
    barrier_latency_p99: metrics.barrier_latency_p99 ?? latencyAt(at, workers),
  };
}

export function simulatedHistory(history: History): History {
  const of = (figure: (at: number, workers: number) => number | null) => history.at.map((at, index) => figure(at, history.total_workers[index] ?? 0));
  const filled = (values: (number | null)[], figure: (at: number, workers: number) => number | null) => {
    const made = of(figure);
    return values.map((value, index) => value ?? made[index] ?? null);
  };
  return {
    ...history,
    coordinator_rps: of(requestsAt),
    shard_assignment_time: of(assignmentAt),
    checkpoint_throughput: filled(history.checkpoint_throughput, throughputAt),
    barrier_latency_p99: filled(history.barrier_latency_p99, latencyAt),
  };
}

/** The log line for an event. */
export function lineOf({ ref, at_ms, node, kind, summary, tags }: TimelineEvent): LogEntry {
  const level = /Lost|Failed/.test(kind) ? "error" : /Exited|Recovery/.test(kind) ? "warn" : "info";
  const own = node === "coordinator";
  const tag = (name: string) => String((tags as Record<string, unknown>)[name] ?? "");
  const task = tag("task") || (own ? "" : node.replace(/-w\d+$/, ""));
  return {
    id: ref,
    timestamp: Math.floor(at_ms),
    level,
    message: summary,
    source: own ? "coordinator" : "worker",
    task_id: task,
    worker_id: own ? tag("worker") : node,
    stream: "",
  } as LogEntry;
}

const LEVELS: Record<string, RegExp> = { info: /info|warn|error/, warn: /warn|error/, error: /error/ };

export interface LineFilters {
  level?: string;
  source?: string;
  task_id?: string;
  worker_id?: string;
}

export function matchesFilters(entry: LogEntry, { level = "", source = "", task_id = "", worker_id = "" }: LineFilters): boolean {
  return (
    (LEVELS[level]?.test(entry.level) ?? true) &&
    (source === "" || entry.source === source) &&
    (task_id === "" || entry.task_id === task_id) &&
    (worker_id === "" || entry.worker_id === worker_id)
  );
}

/** The log lines of the demo's last minute, oldest first; empty unless `enabled`. */
export function useDemoLines(cursor: number | null, filters: LineFilters, enabled: boolean) {
  const timeline = useTimeline();
  const { data, error, isPending } = useQuery({
    queryKey: ["demo lines", cursor],
    queryFn: ({ signal }) => timeline.events({ from_ms: (cursor ?? 0) - LOOK_BACK_MS, to_ms: cursor ?? 0, kind: LOGGED, limit: EVENTS }, signal),
    enabled: enabled && cursor !== null,
    placeholderData: keepPreviousData,
    retry: false,
  });
  const entries = (data?.items ?? []).map(lineOf).filter((entry) => matchesFilters(entry, filters));
  return { entries, error, loading: isPending };
}

/** Samples that the owners of shards could be processing, within the ranges of their shards. */
export function simulatedSamples(shards: readonly Shard[], at: number): Sample[] {
  const owned = shards.filter(({ worker_id }) => worker_id);
  const owners = [...new Set(owned.map(({ worker_id }) => worker_id!))];
  const samples = owners.flatMap((worker) => {
    const own = owned.filter(({ worker_id }) => worker_id === worker);
    return Array.from({ length: SAMPLES_EACH }, (_, index) => {
      const shard = own[Math.floor(noise(at / 2000 + index) * own.length)]!;
      const [start, end] = [shard.start_index ?? shard.shard_id * 96, shard.end_index ?? shard.shard_id * 96 + 96];
      return sampleOf(start + Math.floor(noise(at / 2000 + index * 31 + shard.shard_id) * (end - start)), shard, worker);
    });
  });
  return samples.slice(0, SHOWN_SAMPLES);
}

function sampleOf(number: number, shard: Shard, worker: string): Sample {
  const kind = number % CLASSES.length;
  const values = Array.from({ length: 24 }, (_, index) => Math.sin((index / (2 + kind)) * (1 + noise(number))) + 0.3 * noise(number * 31 + index));
  return {
    id: String(number),
    features: { signal: { kind: "array", values, shape: [24] } },
    label: CLASSES[kind],
    shard_id: shard.shard_id,
    worker_id: worker,
    step: 0,
    epoch: shard.epoch,
    position: -1,
    place: number,
  };
}
