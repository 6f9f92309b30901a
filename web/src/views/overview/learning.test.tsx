import { screen, waitFor } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import type { Goodput } from "../../api/timeline";
import type { Task } from "../../api/types";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { overdueStepMs } from "../curves/step-age";
import { Learning } from "./learning";

const task = { id: "train-1", status: "running", committed_steps: 4, progress: 40, submitted_at: 1, queue_position: null } as Task;
const curve = (name: string, last: number) => ({ name, source: "derived", unit: "", points: 5, first_step: 0, last_step: 4, last, min: last, max: last, not_finite: 0, workers: 1 });
const goodput: Partial<Goodput> = { task: "train-1", total_s: 4, productive_s: 3, goodput: 0.75, classes: [], price: "", currency: "", cost: null, lost_cost: null };

/** Shows the task as running, with its newest step at a moment. */
function showTask(stepAtMs: number) {
  vi.stubGlobal("IntersectionObserver", class { observe() {} disconnect() {} });
  vi.stubGlobal("ResizeObserver", class { observe() {} disconnect() {} });
  vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener() {}, removeEventListener() {} }));
  serve({
    "/api/timeline/curves": () => ({ body: { task: "train-1", axes: ["step"], undone_steps: 0, notes: [], curves: [curve("steps/s", 7.5), curve("step_s", 0.13)] } }),
    "/api/timeline/curves/points": () => ({ body: { x: "step", curves: [{ name: "step_s", x: [4], step: [4], mean: [0.13], min: [0.13], max: [0.13], time_ms: [stepAtMs], not_finite: [] }] } }),
    "/api/timeline/curves/markers": () => ({ body: { markers: [] } }),
    "/api/timeline/goodput": () => ({ body: goodput }),
  });
  show(<Learning tasks={new Map([[task.id, task]])} />, "#/overview");
}

it("says how long a running task has made no step, and dims its last rates", async () => {
  showTask(Date.now() - 25_000);
  expect(await screen.findByText(/no step for 2\d s/)).toBeTruthy();
  expect(screen.getByText("7.50").className).toContain("text-faint");
});

it("shows the rates of a task that makes steps as they are", async () => {
  showTask(Date.now());
  expect((await screen.findByText("7.50")).className).not.toContain("text-faint");
  expect(screen.queryByText(/no step for/)).toBeNull();
});

it("waits five steps before it says that a slow task makes none", () => {
  expect([overdueStepMs(0, 0.1, 10_000), overdueStepMs(0, 0.1, 10_001), overdueStepMs(0, 30, 149_000), overdueStepMs(0, 30, 151_000)]).toEqual([null, 10_001, null, 151_000]);
});

it("says without a price how a cost is shown", async () => {
  showTask(Date.now());
  const link = await screen.findByRole("link", { name: "set price" });
  await waitFor(() => expect(link.getAttribute("href")).toBe("#/goodput/train-1"));
});
