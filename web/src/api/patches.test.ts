import { describe, expect, it } from "vitest";
import { applyPatch } from "./patches";
import type { Patch, Worker } from "./types";

const worker = (id: string, step: number) => ({ id, current_step: step }) as Worker;
const patch = (change: Partial<Patch>): Patch => ({ mark: "a-1", at: 1, ...change });

describe("patches", () => {
  const first = applyPatch(null, patch({ reset: true, workers: [worker("w0", 1), worker("w1", 1)] }));

  it("starts with every row of the first patch", () => {
    expect([...first.workers.keys()]).toEqual(["w0", "w1"]);
  });
  it("replaces changed rows and keeps the other row objects", () => {
    const next = applyPatch(first, patch({ at: 2, workers: [worker("w1", 2)] }));
    expect(next.workers.get("w1")?.current_step).toBe(2);
    expect(next.workers.get("w0")).toBe(first.workers.get("w0"));
    expect(next.tasks).toBe(first.tasks);
  });
  it("removes deleted rows", () => {
    const next = applyPatch(first, patch({ gone: { workers: ["w0"] } }));
    expect([...next.workers.keys()]).toEqual(["w1"]);
  });
  it("drops every row on a reset", () => {
    const next = applyPatch(first, patch({ reset: true, workers: [worker("w9", 0)] }));
    expect([...next.workers.keys()]).toEqual(["w9"]);
  });
  it("keeps checkpoints of two tasks with the same id", () => {
    const saved = (task_id: string) => ({ id: "c", task_id }) as never;
    const next = applyPatch(first, patch({ checkpoints: [saved("a"), saved("b")] }));
    expect([...next.checkpoints.keys()]).toEqual(["a/c", "b/c"]);
  });
  it("changes nothing but the time for an empty patch", () => {
    const next = applyPatch(first, patch({ at: 9 }));
    expect(next).toEqual({ ...first, at: 9 });
  });
});
