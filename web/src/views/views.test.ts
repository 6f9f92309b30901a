import { describe, expect, it } from "vitest";
import type { Checkpoint, Fact, Metrics, Shard, Task, TaskDetail, Worker } from "../api/types";
import { grown, KEPT } from "../state/history";
import { simulatedMetrics, simulatedSamples } from "../state/simulated";
import { distanceOf, matching } from "../shell/matching";
import { median, stageOf, stragglers } from "./barriers/stragglers";
import { newBytes, storedSoFar } from "./checkpoints/sizes";
import { worded } from "./data/moves";
import { BLANK as BLANK_DATASET, requestOf as registrationOf } from "./data/request";
import { pageStart, rangeOf } from "./data/shards";
import { workerState } from "./tasks/cells";
import { BLANK, formOf, requestOf } from "./tasks/request";
import { askedFor, chosen, following, lastWork, rounded, usual } from "./timeline/window";
import { cellsOf, gpuUse } from "./workers/cells";

describe("stragglers", () => {
  const arrived = (round: number, worker: string, time: number) =>
    ({ kind: "BarrierArrived", time, fields: { task: "t", barrier: `step-${round}`, round: 1, worker } }) as unknown as Fact;

  it("takes barriers that differ by a number for one stage", () => {
    expect(["step-420", "epoch", "7"].map(stageOf)).toEqual(["step", "epoch", "7"]);
  });
  it("names who came last, and by how much", () => {
    const facts = [1, 2, 3].flatMap((round) => [
      arrived(round, "quick", round * 1000),
      arrived(round, "slow", round * 1000 + 100 * round),
    ]);
    const [first, second] = stragglers(facts);
    expect(first).toEqual({ worker: "slow", barrier: "step", rounds: 3, last: 3, medianMs: 200, worstMs: 300 });
    expect(second).toMatchObject({ worker: "quick", last: 0, worstMs: 0 });
  });
  it("knows medians", () => expect([median([]), median([3]), median([4, 1])]).toEqual([0, 3, 2.5]));
});

describe("a task's workers", () => {
  const of = (status: string) => ({ status }) as Task;
  it("look as they are, and as ended with their task", () => {
    expect(workerState(of("running"), { status: "failed" } as Worker)).toBe("failed");
    expect(workerState(of("running"), undefined)).toBe("idle");
    expect(workerState(of("failed"), undefined)).toBe("stopped");
  });
});

describe("a task's form", () => {
  it("makes a request with numbers, lists and an object", () => {
    const made = requestOf({ ...BLANK, name: " a ", args: "--x\n1\n", config: '{"lr": 0.1}', env: "A=b=c" });
    expect(made).toMatchObject({
      request: { name: "a", worker_count: 1, args: ["--x", "1"], config: { lr: 0.1 }, env: { A: "b=c" } },
    });
  });
  it("says what has to be mended", () => {
    expect(requestOf({ ...BLANK, config: "[1]", worker_count: "x", env: "A" })).toMatchObject({
      faults: { name: expect.any(String), config: expect.any(String), worker_count: expect.any(String), env: expect.any(String) },
    });
    expect(requestOf({ ...BLANK, name: "a", config: '{"a":' })).toHaveProperty("faults.config");
  });
  it("is filled in as an earlier task was asked for", () => {
    const task = { name: "n", type: "training", entry: "t.py", args: ["a"], dataset_id: "", worker_count: 3, min_workers: 2, policy: "stop", spares: 1, model_state: "sharded", max_restarts: 0, keep_count: 1, config: { a: 1 }, env_names: ["KEY"] };
    expect(formOf(task as unknown as TaskDetail)).toMatchObject({ worker_count: "3", spares: "1", model_state: "sharded", env: "KEY=", config: '{\n  "a": 1\n}' });
  });
});

describe("a task's policy", () => {
  it("is left to the coordinator unless one is chosen", () => {
    expect(requestOf({ ...BLANK, name: "a" })).not.toHaveProperty("request.policy");
    expect(requestOf({ ...BLANK, name: "a", entry: "t.py" })).not.toHaveProperty("request.policy");
    expect(requestOf({ ...BLANK, name: "a", policy: "stop" })).toHaveProperty("request.policy", "stop");
  });
});

describe("a dataset's form", () => {
  it("makes a request, and leaves out what the coordinator finds", () => {
    expect(registrationOf({ ...BLANK_DATASET, dataset_id: " d ", path: "/data", metadata: "a=b=c" })).toMatchObject({
      request: { dataset_id: "d", path: "/data", total_samples: 0, shard_size: 0, seed: 42, shuffle: true, metadata: { a: "b=c" } },
    });
  });
  it("names the fields that are wrong", () => {
    const made = registrationOf({ ...BLANK_DATASET, shard_size: "-1", seed: "", metadata: "x" });
    expect(Object.keys((made as { faults: object }).faults).toSorted()).toEqual(["dataset_id", "metadata", "seed", "shard_size", "total_samples"]);
  });
});

describe("the sizes of a checkpoint", () => {
  const saving = (written: number, total: number, parts: number) =>
    storedSoFar({ size_written: written, size_total: total, parts, parts_expected: 2 } as Checkpoint);
  it("never read as complete while a part is missing", () => {
    expect(saving(0, 0, 0)).toBe("nothing yet");
    expect(saving(0, 2000, 0)).toBe("0 of 2.0 KB");
    expect(saving(1000, 0, 0)).toBe("1.0 KB so far");
    expect(saving(1000, 2000, 1)).toBe("1.0 KB of 2.0 KB");
    expect(saving(2000, 2000, 0)).toBe("2.0 KB, unconfirmed");
  });
  it("say when the new bytes were not recorded", () => {
    expect(newBytes({ size_new: null } as unknown as Checkpoint)).toBe("not recorded");
    expect(newBytes({ size_new: 0 } as unknown as Checkpoint)).toBe("0 B");
  });
});

describe("shards", () => {
  it("show the first and the last sample", () => {
    expect(rangeOf({ start_index: 0, end_index: 96 })).toBe("0 – 95");
    expect(rangeOf({ start_index: 7, end_index: 8 })).toBe("7");
    expect(rangeOf({ start_index: null, end_index: null })).toBe("not recorded");
  });
  it("are on pages that begin at round numbers, within the end", () => {
    expect([0, 49, 50, 1e9, -3, NaN].map((shard) => pageStart(shard, 120))).toEqual([0, 0, 50, 100, 0, 0]);
  });
});

describe("the recorded demo", () => {
  const metrics = { total_workers: 8, active_workers: 8, coordinator_rps: 0, checkpoint_throughput: null, barrier_latency_p99: 31, shard_assignment_time: null };
  it("has every figure, and the same at the same moment", () => {
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

describe("the timeline's window", () => {
  const bounds = { from: 0, to: 3_600_000 };
  it("shows the last minutes, or those around the cursor", () => {
    expect(usual(bounds, null, 3_590_000)).toEqual({ from: 3_300_000, to: 3_600_000 });
    expect(usual(bounds, 1_000_000, 3_590_000)).toEqual({ from: 850_000, to: 1_150_000 });
  });
  it("shows the last that happened where nothing does any more", () => {
    expect(usual(bounds, null, 2_000_000)).toEqual({ from: 1_850_000, to: 2_150_000 });
    expect([lastWork([5, 7, 6], 9), lastWork([5, null], 9), lastWork([], 9)]).toEqual([7, 9, 9]);
  });
  it("takes a span from the address only if it is one", () => {
    expect(chosen("1", "5")).toEqual({ from: 1, to: 5 });
    expect([chosen("5", "1"), chosen("", ""), chosen("x", "2")]).toEqual([null, null, null]);
  });
  it("lists what follows the cursor, and what happened at it", () => {
    const seen = { from: 0, to: 100 };
    expect(following(seen, 40)).toEqual({ from: 39, to: 100 });
    expect([following(seen, null), following(seen, 200)]).toEqual([seen, seen]);
  });
  it("asks for no less than is seen, and for the same after a small move", () => {
    const asked = askedFor({ from: 1000, to: 1900 });
    expect(asked.from).toBeLessThanOrEqual(1000);
    expect(asked.to).toBeGreaterThanOrEqual(1900);
    expect(askedFor({ from: 990, to: 1890 })).toEqual(asked);
    expect(rounded({ from: 1001, to: 4201 })).toEqual(rounded({ from: 1050, to: 4250 }));
  });
});

describe("workers as cells", () => {
  const worker = (change: Partial<Worker>) =>
    ({ id: "w", hostname: "h", ip: "", status: "active", current_task: "t", current_step: 0, last_heartbeat: 0, resources: null, ...change }) as Worker;
  it("shows a failed worker as failed whatever is asked", () => {
    expect(cellsOf([worker({ status: "failed" })], "gpu", 0)[0]?.colour).toBe("failed");
  });
  it("shows lag against the furthest of the same task", () => {
    const [ahead, behind, other] = cellsOf([worker({ current_step: 100 }), worker({ id: "b" }), worker({ id: "c", current_task: "u" })], "lag", 0);
    expect([ahead?.strength, other?.strength]).toEqual([0, 0]);
    expect(behind?.strength).toBeGreaterThan(0.5);
  });
  it("knows no GPU use where nobody told", () => expect(gpuUse(worker({}))).toBeNull());
});

describe("small things", () => {
  it("says moves in words", () => {
    expect(worded([[0, 3, "", "w0"], [8, 9, "", "w0"], [4, 7, "w1", "w2"]])).toBe("60 % no owner → w0, 40 % w1 → w2");
  });
  it("keeps a bounded history", () => {
    const metrics = { checkpoint_throughput: null, coordinator_rps: 1, active_workers: 1, total_workers: 1, barrier_latency_p99: null, shard_assignment_time: null } as Metrics;
    let history = { at: [], checkpoint_throughput: [], coordinator_rps: [], active_workers: [], total_workers: [], barrier_latency_p99: [], shard_assignment_time: [] } as Parameters<typeof grown>[0];
    for (let at = 0; at < KEPT + 5; at += 1) history = grown(history, at, metrics);
    expect([history.at.length, history.at[0], history.coordinator_rps.length]).toEqual([KEPT, 5, KEPT]);
  });
  it("finds commands by their letters, the closest first", () => {
    const all = ["Tasks", "Settings", "train-1-w3"].map((title) => ({ title, group: "View", run: () => undefined }));
    expect(matching(all, "set").map(({ title }) => title)).toEqual(["Settings"]);
    expect(matching(all, "tw3")[0]?.title).toBe("train-1-w3");
    expect(distanceOf("abc", "zz")).toBe(Infinity);
  });
});
