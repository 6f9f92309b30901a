import { describe, expect, it } from "vitest";
import { patched } from "./patches";
import type { Patch, Worker } from "./types";

const worker = (id: string, step: number) => ({ id, current_step: step }) as Worker;
const patch = (change: Partial<Patch>): Patch => ({ mark: "a-1", at: 1, ...change });

describe("patches", () => {
  const first = patched(null, patch({ reset: true, workers: [worker("w0", 1), worker("w1", 1)] }));

  it("begins with everything", () => {
    expect([...first.workers.keys()]).toEqual(["w0", "w1"]);
  });
  it("puts changed rows in their place and leaves the rest the same objects", () => {
    const next = patched(first, patch({ at: 2, workers: [worker("w1", 2)] }));
    expect(next.workers.get("w1")?.current_step).toBe(2);
    expect(next.workers.get("w0")).toBe(first.workers.get("w0"));
    expect(next.tasks).toBe(first.tasks);
  });
  it("takes out what is gone", () => {
    const next = patched(first, patch({ gone: { workers: ["w0"] } }));
    expect([...next.workers.keys()]).toEqual(["w1"]);
  });
  it("forgets everything when a coordinator begins anew", () => {
    const next = patched(first, patch({ reset: true, workers: [worker("w9", 0)] }));
    expect([...next.workers.keys()]).toEqual(["w9"]);
  });
  it("tells checkpoints of two tasks with the same id apart", () => {
    const saved = (task_id: string) => ({ id: "c", task_id }) as never;
    const next = patched(first, patch({ checkpoints: [saved("a"), saved("b")] }));
    expect([...next.checkpoints.keys()]).toEqual(["a/c", "b/c"]);
  });
  it("leaves what it knows when a patch is empty", () => {
    const next = patched(first, patch({ at: 9 }));
    expect(next).toEqual({ ...first, at: 9 });
  });
});
