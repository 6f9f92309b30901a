import { act, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { live } from "../../api/live";
import type { Task } from "../../api/types";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { stubStreams } from "../../testing/stream";
import { TaskPage } from "./task-page";

const base = {
  id: "train-1", name: "train", type: "training", status: "completed", worker_ids: [], dataset_id: "", started_at: 1000, completed_at: 9000, progress: 100,
  logs: [], worker_ids_total: 0, worker_count: 2, spares: 0, datasets: [], submitted_at: 900, reason: "its workers ended", exit_code: 0, generation: 1,
  phase: "running", committed_steps: 8, saved_step: null, continuations: 0, parent: "", forked_at: 0, priority: 0, queue_position: null, elastic: false, min_workers: 2,
} as Task;

function showTask(task: Task) {
  vi.stubGlobal("IntersectionObserver", class { observe() {} disconnect() {} });
  vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener() {}, removeEventListener() {} }));
  serve({ "/api/timeline/goodput": () => ({ body: { total_s: 4, goodput: 0.625, classes: [] } }) });
  const streams = stubStreams();
  live.open();
  show(<TaskPage id={task.id} />, `#/tasks/${task.id}`);
  act(() => streams[0]!.send({ mark: "a-1", at: 10_000, reset: true, tasks: [task] }));
}

const valueOf = (name: string) => screen.getByText(name, { selector: "dt, dt *" }).closest("div")!.querySelector("dd")!.textContent;

it("shows no phase after the end of a task, the reason as one, and its goodput as a link", async () => {
  showTask(base);
  expect(valueOf("Generation")).toBe("1");
  expect(screen.getByText("Reason:")).toBeTruthy();
  const link = await screen.findByRole("link", { name: "Goodput: 62.5 %" });
  expect(link.getAttribute("href")).toBe("#/goodput/train-1");
  expect(valueOf("Goodput")).toBe("62.5 %");
});

it("shows the phase while a task runs", () => {
  showTask({ ...base, status: "running", completed_at: null });
  expect(valueOf("Generation")).toBe("1 · running");
});
