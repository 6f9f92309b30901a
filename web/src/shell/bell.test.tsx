import { act, screen, within } from "@testing-library/react";
import { beforeEach, expect, it } from "vitest";
import { live } from "../api/live";
import type { Alert } from "../api/types";
import { serve } from "../testing/server";
import { show } from "../testing/show";
import { stubStreams } from "../testing/stream";
import { Bell } from "./bell";

const NOW = Date.now();

function alert(id: string, fields: Partial<Alert> = {}): Alert {
  return {
    id, status: "open", rule: "no_step", severity: "error", subject: "task:train-1", text: `text of ${id}`,
    task_id: "train-1", worker_id: "", evidence: {}, event: "@9", causes: ["train-1-w0/1/7"], count: 1,
    raised_at: NOW - 60_000, last_at: NOW - 60_000, resolved_at: null, resolution: "", expired: false,
    channels: [], pending: [], failed: [], ...fields,
  };
}

function showBell(alerts: Alert[]) {
  const streams = stubStreams();
  live.open();
  const shown = show(<Bell />, "#/overview");
  const open = alerts.filter((each) => each.status === "open").length;
  act(() => streams[0]!.send({ mark: "a-1", at: NOW, reset: true, alerts, totals: { alerts: open } }));
  return shown;
}

beforeEach(() => void serve({}));

it("says that no alert is open", async () => {
  const { user } = showBell([]);
  await user.click(screen.getByRole("button", { name: "Alerts: none open" }));
  expect(screen.getByText("No alert is open.")).toBeTruthy();
});

it("counts open alerts and lists them before the ended ones, each with links", async () => {
  const resolved = { status: "resolved", resolved_at: NOW - 5_000, resolution: "step 6 was committed" } as const;
  const { user } = showBell([
    alert("alert-1", resolved),
    alert("alert-4", { ...resolved, resolution: "its task failed an hour ago", expired: true }),
    alert("alert-2", { raised_at: NOW - 90_000, last_at: NOW - 90_000, subject: "worker:train-1-w1", count: 3 }),
    alert("alert-3", { failed: ["webhook"], causes: [] }),
  ]);
  await user.tab();
  await user.keyboard("{Enter}");
  const dialog = screen.getByRole("dialog", { name: "Alerts" });
  const open = within(within(dialog).getByRole("list", { name: "Open alerts" })).getAllByRole("listitem");
  expect(open.map((each) => /alert-\d/.exec(each.textContent!)?.[0])).toEqual(["alert-3", "alert-2"]);
  expect(open[0]!.textContent).toContain("Not delivered: webhook");
  expect(open[1]!.textContent).toContain("3 times");
  const link = (name: string) => within(open[1]!).getByRole("link", { name }).getAttribute("href");
  expect(link("worker train-1-w1")).toBe("#/workers/train-1-w1");
  expect(link("Event that caused it")).toContain("event=train-1-w0%2F1%2F7");
  expect(link("Event of the alert")).toContain("event=%409");
  const ended = within(dialog).getByRole("list", { name: "Ended alerts" });
  expect(ended.textContent).toContain("resolved: text of alert-1Resolved: step 6 was committed");
  expect(ended.textContent).toContain("expired: text of alert-4Expired: its task failed an hour ago");
  expect(screen.getByRole("button", { name: "Alerts: 2 open", hidden: true })).toBeTruthy();
});

it("shows why a test message was refused, and what to do next", async () => {
  serve({ "/api/alerts/test": () => ({ status: 409, body: { error: { code: "refused", message: "no channel is set", hint: "Set alert_webhook." } } }) });
  const { user } = showBell([]);
  await user.click(screen.getByRole("button", { name: "Alerts: none open" }));
  await user.click(screen.getByRole("button", { name: "Send a test message" }));
  expect(await screen.findByText(/no channel is set/)).toBeTruthy();
  expect(screen.getByText(/Set alert_webhook\./)).toBeTruthy();
});

it("sends a test message and says what each channel did with it", async () => {
  serve({
    "/api/alerts/test": () => ({
      body: [
        { channel: "webhook", target: "hooks.example.org", error: "" },
        { channel: "email", target: "ops@example.org", error: "SMTP 535 wrong password" },
      ],
    }),
  });
  const { user } = showBell([]);
  await user.click(screen.getByRole("button", { name: "Alerts: none open" }));
  await user.click(screen.getByRole("button", { name: "Send a test message" }));
  expect(await screen.findByText("webhook to hooks.example.org: took the message")).toBeTruthy();
  expect(screen.getByText("email to ops@example.org: SMTP 535 wrong password")).toBeTruthy();
});
