import { describe, expect, it } from "vitest";
import type { Task, Worker } from "../../api/types";
import { workerState } from "./task-cells";

describe("a task's workers", () => {
  const of = (status: string) => ({ status }) as Task;
  it("are idle or stopped with their task when they are not listed", () => {
    expect(workerState(of("running"), { status: "failed" } as Worker)).toBe("failed");
    expect(workerState(of("running"), undefined)).toBe("idle");
    expect(workerState(of("failed"), undefined)).toBe("stopped");
  });
});
