import { describe, expect, it } from "vitest";
import type { Worker } from "../../api/types";
import { cellsOf, gpuUse } from "./worker-cells";

describe("workers as cells", () => {
  const worker = (change: Partial<Worker>) =>
    ({ id: "w", hostname: "h", ip: "", status: "active", current_task: "t", current_step: 0, last_heartbeat: 0, resources: null, ...change }) as Worker;
  it("shows a failed worker as failed in every mode", () => {
    expect(cellsOf([worker({ status: "failed" })], "gpu", 0)[0]?.colour).toBe("failed");
  });
  it("measures lag against the furthest worker of the task", () => {
    const [ahead, behind, other] = cellsOf([worker({ current_step: 100 }), worker({ id: "b" }), worker({ id: "c", current_task: "u" })], "lag", 0);
    expect([ahead?.strength, other?.strength]).toEqual([0, 0]);
    expect(behind?.strength).toBeGreaterThan(0.5);
  });
  it("have no GPU use without a report", () => expect(gpuUse(worker({}))).toBeNull());
});
