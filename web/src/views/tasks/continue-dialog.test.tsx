import { screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { serve, type Routes } from "../../testing/server";
import { show } from "../../testing/show";
import { ContinueDialog, ForkDialog } from "./continue-dialog";

const TASK = { id: "train-1", name: "train", worker_count: 2, config: { lr: 0.1 }, env_names: ["KEY", "PWD"] };
const ANSWER = { task_id: "train-1", status: "queued", step: 40, changes: [{ name: "config.lr", before: "0.1", after: "0.01" }, { name: "spares", before: "", after: "1" }] };

function served(action: string, answer: { status?: number; body: unknown }, more: Routes = {}) {
  const sent: unknown[] = [];
  serve({
    "/api/tasks/train-1": () => ({ body: TASK }),
    [`/api/tasks/train-1/${action}`]: async (_, request) => {
      sent.push(await request.json());
      return answer;
    },
    ...more,
  });
  return sent;
}

const CHECKPOINTS: Routes = { "/api/checkpoints": () => ({ body: [{ step: 60 }, { step: 40 }, { step: 40 }] }) };

it("shows the step and the changes, and continues only then, with the same request", async () => {
  const close = vi.fn();
  const sent = served("continue", { body: ANSWER });
  const { user } = show(<ContinueDialog id="train-1" close={close} />);
  const workers = await screen.findByLabelText("Workers");
  expect((workers as HTMLInputElement).value).toBe("2");
  await user.clear(workers);
  await user.type(workers, "4");
  await user.clear(screen.getByLabelText("Config entries to change"));
  await user.type(screen.getByLabelText("Config entries to change"), '{{"lr": 0.01}');
  await user.type(screen.getByLabelText("Value of KEY"), "secret");
  await user.click(screen.getByRole("button", { name: "Preview" }));
  const preview = await screen.findByText("continues from step 40");
  expect(preview.parentElement!.textContent).toContain("config.lr: 0.1 → 0.01");
  expect(preview.parentElement!.textContent).toContain("spares: – → 1");
  const request = { worker_count: 4, config: { lr: 0.01 }, env: { KEY: "secret", PWD: "" } };
  expect(sent).toEqual([{ ...request, dry_run: true }]);
  expect(close).not.toHaveBeenCalled();
  await user.click(screen.getByRole("button", { name: "Continue from step 40" }));
  await vi.waitFor(() => expect(close).toHaveBeenCalledOnce());
  expect(sent[1]).toEqual({ ...request, dry_run: false });
});

it("asks for the values of the environment and sends nothing without them", async () => {
  const sent = served("continue", { body: ANSWER });
  const { user } = show(<ContinueDialog id="train-1" close={vi.fn()} />);
  await user.click(await screen.findByRole("button", { name: "Preview" }));
  expect(screen.getAllByRole("alert").map((each) => each.textContent)).toEqual(["enter its value: values are not stored"]);
  expect(sent).toEqual([]);
});

it("hides the preview when a field changes", async () => {
  served("continue", { body: ANSWER });
  const { user } = show(<ContinueDialog id="train-1" close={vi.fn()} />);
  await user.type(await screen.findByLabelText("Value of KEY"), "a");
  await user.click(screen.getByRole("button", { name: "Preview" }));
  await screen.findByText("continues from step 40");
  await user.type(screen.getByLabelText("Value of KEY"), "b");
  expect(screen.queryByText("continues from step 40")).toBeNull();
  expect(screen.getByRole("button", { name: "Preview" })).toBeTruthy();
});

it("shows why the coordinator refused, and stays open", async () => {
  const close = vi.fn();
  served("continue", { status: 409, body: { error: { code: "conflict", message: "worker w0 is still ending", hint: "try again" } } });
  const { user } = show(<ContinueDialog id="train-1" close={close} />);
  await user.type(await screen.findByLabelText("Value of KEY"), "a{Enter}");
  expect((await screen.findByRole("alert")).textContent).toBe("worker w0 is still ending (try again)");
  expect(close).not.toHaveBeenCalled();
});

it("forks at the chosen checkpoint and opens the page of the fork", async () => {
  const sent = served("fork", { body: { ...ANSWER, task_id: "trial-1", changes: [] } }, CHECKPOINTS);
  const { user } = show(<ForkDialog id="train-1" step={40} close={vi.fn()} />);
  const step = await screen.findByLabelText<HTMLSelectElement>("Checkpoint");
  expect([...step.options].map(({ text }) => text)).toEqual(["step 60", "step 40"]);
  expect([step.value, document.activeElement]).toEqual(["40", step]);
  await user.type(screen.getByLabelText("Name"), "trial");
  await user.type(screen.getByLabelText("Value of KEY"), "a");
  await user.click(screen.getByRole("button", { name: "Preview" }));
  expect((await screen.findByText("starts from step 40 of train-1")).parentElement!.textContent).toContain("with the same parameters");
  await user.click(screen.getByRole("button", { name: "Fork at step 40" }));
  await vi.waitFor(() => expect(location.hash).toBe("#/tasks/trial-1"));
  expect(sent[1]).toEqual({ worker_count: 2, config: {}, env: { KEY: "a", PWD: "" }, step: 40, name: "trial", dry_run: false });
});

it("chooses the newest checkpoint for a fork without a step", async () => {
  served("fork", { body: ANSWER }, CHECKPOINTS);
  show(<ForkDialog id="train-1" close={vi.fn()} />);
  expect((await screen.findByLabelText<HTMLSelectElement>("Checkpoint")).value).toBe("60");
});
