import { screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { ApiError } from "../api/client";
import { show } from "../testing/show";
import { ActionError, ConfirmButton } from "./confirm";

it("acts only after the second button, and not after Cancel", async () => {
  const stop = vi.fn();
  const { user } = show(<ConfirmButton label="Stop" confirm="Stop train-1: its workers save first" pending={false} onConfirm={stop} />);
  await user.click(screen.getByRole("button", { name: "Stop" }));
  await user.click(screen.getByRole("button", { name: "Cancel" }));
  await user.click(screen.getByRole("button", { name: "Stop" }));
  expect(stop).not.toHaveBeenCalled();
  await user.click(screen.getByRole("button", { name: /its workers save first/ }));
  expect(stop).toHaveBeenCalledOnce();
});

it("shows the message and the hint of an error", () => {
  show(<ActionError error={new ApiError(409, "conflict", "the task has ended", "restart it")} />);
  expect(screen.getByRole("alert").textContent).toBe("the task has ended (restart it)");
});
