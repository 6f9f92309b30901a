import { expect, it } from "vitest";
import type { Metrics } from "../api/types";
import { grown, KEPT } from "./metrics";

it("keeps a bounded history", () => {
  const metrics = { checkpoint_throughput: null, coordinator_rps: 1, active_workers: 1, total_workers: 1, barrier_latency_p99: null, shard_assignment_time: null } as Metrics;
  let history = { at: [], checkpoint_throughput: [], coordinator_rps: [], active_workers: [], total_workers: [], barrier_latency_p99: [], shard_assignment_time: [] } as Parameters<typeof grown>[0];
  for (let at = 0; at < KEPT + 5; at += 1) history = grown(history, at, metrics);
  expect([history.at.length, history.at[0], history.coordinator_rps.length]).toEqual([KEPT, 5, KEPT]);
});
