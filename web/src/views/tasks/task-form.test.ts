import { describe, expect, it } from "vitest";
import type { TaskDetail } from "../../api/types";
import { BLANK, formOf, requestOf } from "./task-form";

describe("a task's form", () => {
  it("makes a request with numbers, lists and an object", () => {
    const made = requestOf({ ...BLANK, name: " a ", args: "--x\n1\n", config: '{"lr": 0.1}', env: "A=b=c", priority: "-2", after: "prepare-1, b ", preemptible: "yes" });
    expect(made).toMatchObject({
      request: { name: "a", worker_count: 1, args: ["--x", "1"], config: { lr: 0.1 }, env: { A: "b=c" }, priority: -2, after: ["prepare-1", "b"], preemptible: true },
    });
  });
  it("reports every wrong field", () => {
    expect(requestOf({ ...BLANK, config: "[1]", worker_count: "x", env: "A" })).toMatchObject({
      errors: { name: expect.any(String), config: expect.any(String), worker_count: expect.any(String), env: expect.any(String) },
    });
    expect(requestOf({ ...BLANK, name: "a", config: '{"a":' })).toHaveProperty("errors.config");
  });
  it("is filled in with the request of an earlier task", () => {
    const task = { name: "n", type: "training", entry: "t.py", args: ["a"], dataset_id: "", worker_count: 3, min_workers: 2, policy: "stop", spares: 1, model_state: "sharded", max_restarts: 0, keep_count: 1, config: { a: 1 }, env_names: ["KEY"], priority: 3, after: ["a", "b"], preemptible: true };
    expect(formOf(task as unknown as TaskDetail)).toMatchObject({ worker_count: "3", spares: "1", model_state: "sharded", priority: "3", after: "a, b", preemptible: "yes", env: "KEY=", config: '{\n  "a": 1\n}' });
  });
});

describe("a task's policy", () => {
  it("is left to the coordinator unless one is chosen", () => {
    expect(requestOf({ ...BLANK, name: "a" })).not.toHaveProperty("request.policy");
    expect(requestOf({ ...BLANK, name: "a", entry: "t.py" })).not.toHaveProperty("request.policy");
    expect(requestOf({ ...BLANK, name: "a", policy: "stop" })).toHaveProperty("request.policy", "stop");
  });
});
