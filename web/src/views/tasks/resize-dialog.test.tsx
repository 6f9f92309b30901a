import { screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import type { TaskDetail } from "../../api/types";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { ResizeDialog } from "./resize-dialog";

const TASK = { id: "train-1", worker_count: 2, min_workers: 1 } as TaskDetail;
const ANSWER = { task_id: "train-1", before: 2, after: 4, placed: 2, waiting: 2, waiting_for: "", changed: true, min_workers: 0 };

function served(answer: { status?: number; body: unknown }) {
  const sent: unknown[] = [];
  serve({
    "/api/tasks/train-1/resize": async (_, request) => {
      sent.push(await request.json());
      return answer;
    },
  });
  return sent;
}

it("sends the number of workers and shows how many wait", async () => {
  const sent = served({ body: ANSWER });
  const { user } = show(<ResizeDialog task={TASK} close={vi.fn()} />);
  expect(document.activeElement).toBe(screen.getByLabelText("Workers"));
  await user.clear(screen.getByLabelText("Workers"));
  await user.keyboard("4{Enter}");
  expect((await screen.findByRole("status")).textContent).toBe("4 workers; 2 wait for a slot");
  expect(sent).toEqual([{ worker_count: 4, min_workers: 0 }]);
});

it("keeps the minimum of an elastic task, and says when nothing changed", async () => {
  const sent = served({ body: { ...ANSWER, after: 1, changed: false, waiting: 0 } });
  const { user } = show(<ResizeDialog task={{ ...TASK, elastic: true }} close={vi.fn()} />);
  await user.click(screen.getByRole("button", { name: "Resize" }));
  expect((await screen.findByRole("status")).textContent).toBe("already 1 worker");
  expect(sent).toEqual([{ worker_count: 2, min_workers: 1 }]);
});

it("sends no number that is not whole", async () => {
  served({ body: ANSWER });
  const { user } = show(<ResizeDialog task={TASK} close={vi.fn()} />);
  await user.clear(screen.getByLabelText("Workers"));
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Resize" }).disabled).toBe(true);
});

it("shows why the coordinator refused", async () => {
  served({ status: 409, body: { error: { code: "conflict", message: "the task has ended", hint: "continue it" } } });
  const { user } = show(<ResizeDialog task={TASK} close={vi.fn()} />);
  await user.click(screen.getByRole("button", { name: "Resize" }));
  expect((await screen.findByRole("alert")).textContent).toBe("the task has ended (continue it)");
});
