import { screen, within } from "@testing-library/react";
import { expect, it } from "vitest";
import { show } from "../../testing/show";
import Tasks from ".";

it("filters by every status that a task can have", () => {
  show(<Tasks />, "#/tasks");
  const options = within(screen.getByRole("combobox", { name: "Status" })).getAllByRole("option");
  expect(options.map((option) => option.textContent)).toEqual([
    "any status", "queued", "starting", "running", "recovering", "stopping", "completed", "failed", "stopped",
  ]);
});
