import { describe, expect, it } from "vitest";
import type { Task, Worker } from "../../api/types";
import { detailOf, statusOf, workerState } from "./task-cells";

describe("a task's workers", () => {
  const of = (status: string) => ({ status }) as Task;
  it("are idle or stopped with their task when they are not listed", () => {
    expect(workerState(of("running"), { status: "failed" } as Worker)).toBe("failed");
    expect(workerState(of("running"), undefined)).toBe("idle");
    expect(workerState(of("failed"), undefined)).toBe("stopped");
  });
});

it("shows the place and the priority of a queued task", () => {
  expect(statusOf({ status: "queued", queue_position: 2 } as Task)).toBe("queued, place 2");
  expect(detailOf({ priority: 5, reason: "needs 2 slots" } as Task)).toBe("priority 5; needs 2 slots");
  expect(detailOf({ priority: 0, reason: "trains" } as Task)).toBe("trains");
  expect(statusOf({ status: "running", queue_position: null } as Task)).toBe("running");
});
