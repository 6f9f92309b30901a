import { screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import type { Checkpoint } from "../../api/types";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { isPinned, keptBecause } from "./kept";
import { Pin } from "./pin";

const saved = (...kept_because: string[]) => ({ id: "step-40", task_id: "train-1", kept_because }) as unknown as Checkpoint;

function served(answer: { status?: number; body: unknown }) {
  const sent: [string, string | null, string][] = [];
  serve({
    "/api/checkpoints/step-40/pin": async (query, request) => {
      sent.push([request.method, query.get("task_id"), await request.text()]);
      return answer;
    },
  });
  return sent;
}

it("sends the note of a pin", async () => {
  const close = vi.fn();
  const sent = served({ body: { kept_because: ["newest", "pinned: for the paper"] } });
  const { user } = show(<Pin saved={saved("newest")} close={close} />);
  await user.click(screen.getByRole("button", { name: "Pin" }));
  await user.keyboard("for the paper{Enter}");
  expect(await screen.findByRole("button", { name: "Pin" })).toBeTruthy();
  await vi.waitFor(() => expect(screen.queryByLabelText("Note (optional)")).toBeNull());
  expect(sent).toEqual([["POST", "train-1", '{"note":"for the paper"}']]);
  expect(close).not.toHaveBeenCalled();
});

it("asks before it unpins, and closes when the checkpoint is deleted", async () => {
  const close = vi.fn();
  const sent = served({ body: { kept_because: [] } });
  const { user } = show(<Pin saved={saved("pinned")} close={close} />);
  await user.click(screen.getByRole("button", { name: "Unpin" }));
  expect(sent).toEqual([]);
  await user.click(screen.getByRole("button", { name: /it is deleted, because no other rule keeps it/ }));
  await vi.waitFor(() => expect(close).toHaveBeenCalledOnce());
  expect(sent).toEqual([["DELETE", "train-1", ""]]);
});

it("shows why the coordinator refused", async () => {
  served({ status: 409, body: { error: { code: "conflict", message: "the checkpoint was deleted", hint: "pin another" } } });
  const { user } = show(<Pin saved={saved()} close={vi.fn()} />);
  await user.click(screen.getByRole("button", { name: "Pin" }));
  await user.keyboard("{Enter}");
  expect((await screen.findByRole("alert")).textContent).toBe("the checkpoint was deleted (pin another)");
});

it("tells the pin of a user from that of a fork", () => {
  expect([saved("pinned"), saved("pinned: note"), saved("newest", "pinned by trial-1"), saved()].map(isPinned)).toEqual([true, true, false, false]);
  expect([saved("newest", "best loss"), saved(), {} as Checkpoint].map(keptBecause)).toEqual(["newest, best loss", "–", "–"]);
});
