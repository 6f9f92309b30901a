import { screen, within } from "@testing-library/react";
import { beforeEach, expect, it } from "vitest";
import { serve } from "../testing/server";
import { show } from "../testing/show";
import { Term } from "../ui/term";
import { Dialogs } from "./dialogs";

beforeEach(() => void serve({}));

it("turns single-key shortcuts off and on in the help", async () => {
  const { user } = show(<Dialogs />, "#/overview");
  await user.keyboard("?");
  await user.click(screen.getByRole("checkbox", { name: /Single-key shortcuts/ }));
  await user.click(screen.getByRole("button", { name: "Close" }));
  await user.keyboard("2");
  expect(location.hash).toBe("#/overview");
  await user.keyboard("?");
  expect(screen.queryByRole("dialog", { name: "Keyboard shortcuts" })).toBeNull();
});

it("runs the command that is chosen in the palette", async () => {
  const { user } = show(<Dialogs />, "#/overview");
  await user.keyboard("{Control>}k{/Control}");
  await user.type(screen.getByRole("combobox"), "checkp");
  expect(screen.getByRole("option", { selected: true }).textContent).toContain("Checkpoints");
  await user.keyboard("{Enter}");
  expect(location.hash).toBe("#/checkpoints");
  expect(screen.queryByRole("combobox")).toBeNull();
});

it("moves through the palette with the arrow keys and wraps around", async () => {
  const { user } = show(<Dialogs />, "#/overview");
  await user.keyboard("{Control>}k{/Control}{ArrowDown}");
  expect(screen.getByRole("option", { selected: true }).textContent).toContain("Workers");
  await user.keyboard("{ArrowUp}{ArrowUp}");
  const options = screen.getAllByRole("option");
  expect(options.at(-1)!.getAttribute("aria-selected")).toBe("true");
});

it("opens the glossary at a word, and closes it", async () => {
  const { user } = show(<><Term word="generation" /><Dialogs /></>, "#/tasks/train-1");
  await user.click(screen.getByRole("button", { name: "generation" }));
  expect(location.hash).toBe("#/tasks/train-1?glossary=generation");
  const dialog = screen.getByRole("dialog", { name: "Glossary" });
  expect(within(dialog).getByText("incarnation")).toBeTruthy();
  await user.click(within(dialog).getByRole("button", { name: "Close" }));
  expect(location.hash).toBe("#/tasks/train-1");
});
