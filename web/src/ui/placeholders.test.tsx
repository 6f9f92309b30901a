import { screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { ApiError } from "../api/client";
import { show } from "../testing/show";
import { ErrorMessage } from "./placeholders";

it("shows a hint of the coordinator as a sentence, never as a command to copy", () => {
  show(<ErrorMessage error={new ApiError(409, "conflict", "the task is running", "start it with: strata restart after it ended")} />);
  expect(screen.getByText("start it with: strata restart after it ended")).toBeTruthy();
  expect(screen.queryByRole("button")).toBeNull();
});

it("offers the command that starts a coordinator which cannot be reached", () => {
  show(<ErrorMessage error={ApiError.unreachable()} />);
  expect(screen.getByRole("button", { name: "strata up" })).toBeTruthy();
});
