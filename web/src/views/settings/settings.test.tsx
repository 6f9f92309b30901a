import { screen } from "@testing-library/react";
import { beforeEach, expect, it } from "vitest";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import Settings from ".";

beforeEach(() => void serve({ "/api/settings": () => ({ body: { values: { heartbeat_timeout_s: 30, token: "" }, storage: "local", token_needed: true, encrypted: false } }) }));

it("changes the theme with the arrow keys and remembers it", async () => {
  const { user } = show(<Settings />, "#/settings");
  screen.getByRole("radio", { name: "auto" }).focus();
  await user.keyboard("{ArrowRight}");
  expect(document.documentElement.dataset.theme).toBe("light");
  expect(localStorage.getItem("strata-theme")).toBe("light");
});

it("turns single-key shortcuts off", async () => {
  const { user } = show(<Settings />, "#/settings");
  await user.click(screen.getByRole("checkbox", { name: /Single-key shortcuts/ }));
  expect(screen.getByRole<HTMLInputElement>("checkbox", { name: /Single-key shortcuts/ }).checked).toBe(false);
});

it("lists the settings that have a value", async () => {
  show(<Settings />, "#/settings");
  expect(await screen.findByText("heartbeat_timeout_s")).toBeTruthy();
  expect(screen.getByText("required")).toBeTruthy();
  expect(screen.queryByText("token")).toBeNull();
});
