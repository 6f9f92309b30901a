import { screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { Player } from "./player";

const bounds = { from: 0, to: 1_000_000 };
const pressed = () => screen.getByRole("button", { name: /Play|Pause/ }).getAttribute("aria-pressed");

it("toggles once when Space presses its focused button", async () => {
  const { user } = show(<Player bounds={bounds} />, "#/timeline?t=5000");
  screen.getByRole("button", { name: "Play" }).focus();
  await user.keyboard(" ");
  expect(pressed()).toBe("true");
});

it("toggles with Space while nothing has the focus", async () => {
  const { user } = show(<Player bounds={bounds} />, "#/timeline?t=5000");
  await user.keyboard(" ");
  expect(pressed()).toBe("true");
});

it("goes to the next event that matches and opens it", async () => {
  const requests = serve({ "/api/timeline/seek": () => ({ body: { at_ms: 7000.5, ref: "@9", summary: "" } }) });
  const { user } = show(<Player bounds={bounds} />, "#/timeline?t=5000&find=kind%3DWorkerLost");
  await user.click(screen.getByRole("button", { name: "Next event" }));
  expect(requests[0]?.search).toBe("?predicate=kind%3DWorkerLost&from_ms=5000&direction=next");
  expect(location.hash).toContain("t=7001");
  expect(location.hash).toContain("event=%409");
});

it("shows why a condition is not valid", async () => {
  serve({ "/api/timeline/seek": () => ({ status: 400, body: { error: { code: "invalid_argument", message: "no such field", hint: "" } } }) });
  const { user } = show(<Player bounds={bounds} />, "#/timeline?t=5000&find=x");
  await user.click(screen.getByRole("button", { name: "Next event" }));
  expect((await screen.findByTitle("no such field")).getAttribute("aria-invalid")).toBe("true");
});
