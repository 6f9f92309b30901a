import { describe, expect, it } from "vitest";
import type { Shard } from "../api/types";
import { simulatedMetrics, simulatedSamples } from "./simulated";

describe("the recorded demo", () => {
  const metrics = { total_workers: 8, active_workers: 8, coordinator_rps: 0, checkpoint_throughput: null, barrier_latency_p99: 31, shard_assignment_time: null };
  it("has a value for every metric, the same at the same moment", () => {
    const shown = simulatedMetrics(metrics, 1000);
    expect(Object.values(shown).every((value) => typeof value === "number" && value > 0)).toBe(true);
    expect(shown.barrier_latency_p99).toBe(31);
    expect(simulatedMetrics(metrics, 1000)).toEqual(shown);
  });
  it("shows samples within the shards of their owners", () => {
    const shards = [0, 1, 2].map((id) => ({ shard_id: id, start_index: id * 10, end_index: id * 10 + 10, worker_id: id ? `w${id}` : null, state: "leased", epoch: 0 }) as Shard);
    const samples = simulatedSamples(shards, 5000);
    expect(samples.length).toBeGreaterThan(2);
    for (const { id, shard_id, worker_id } of samples) {
      expect(worker_id).toBe(`w${shard_id}`);
      expect(Math.floor(Number(id) / 10)).toBe(shard_id);
    }
  });
});
