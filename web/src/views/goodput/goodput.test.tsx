import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";
import type { Goodput, RunsGoodput } from "../../api/timeline";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import GoodputView, { RunsOverview, TaskGoodput } from "./index";
import { layers } from "./stacked-area";
import { isPrice, money, share } from "./time-classes";

const goodput: Goodput = {
  task: "train-1", run: "log", from_ms: 1000, to_ms: 3000, workers: 2, total_s: 4, productive_s: 3, goodput: 0.75,
  classes: [
    { name: "productive", label: "productive steps", seconds: 3, share: 0.75, cost: 30 },
    { name: "replacement_wait", label: "waiting for a replacement", seconds: 1, share: 0.25, cost: 10 },
  ],
  slice_ms: 1000,
  series: [
    { from_ms: 1000, seconds: { productive: 2 } },
    { from_ms: 2000, seconds: { productive: 1, replacement_wait: 1 } },
  ],
  causes: [{
    kind: "WorkerLost", text: "train-1-w1 was declared lost (exit)", seconds: 1, cost: 10, count: 2, ref: "@12", at_ms: 2000,
    classes: { replacement_wait: 1 },
    saving: { seconds: 1, cost: 10, text: "a spare would have saved 1.0 s = $10.00", method: "a spare gets the rank in the same turn" },
  }],
  causes_total: 1, price: "36000/worker-hour", currency: "$", cost: 40, lost_cost: 10, pending_s: 0, notes: [],
};

describe("the goodput of a task", () => {
  it("shows classes with time, share and cost, and what would have saved a loss", () => {
    show(<TaskGoodput goodput={goodput} />);
    const table = screen.getByRole("table", { name: "Classes of worker time" });
    expect(within(table).getAllByRole("row").map((row) => row.textContent)).toEqual([
      "ClassTimeShareCost", "productive steps3.0 s75.0 %$30.00", "waiting for a replacement1.0 s25.0 %$10.00",
    ]);
    expect(screen.getByText("a spare would have saved 1.0 s = $10.00").getAttribute("title")).toContain("same turn");
    expect(screen.getByRole("img", { name: "Worker time by class: productive steps 75.0 %, waiting for a replacement 25.0 %" })).toBeTruthy();
  });
  it("links a cause to its event at its moment", () => {
    show(<TaskGoodput goodput={goodput} />);
    const target = screen.getByRole("link", { name: /^@12 at / }).getAttribute("href");
    expect(target).toContain("#/timeline?");
    expect(target).toContain("event=%4012");
    expect(target).toContain("t=2000");
  });
  it("shows neither a cost of 0 nor a column of costs without a price", () => {
    const free = { ...goodput, price: "", cost: null, lost_cost: null, classes: goodput.classes.map((each) => ({ ...each, cost: null })), causes: [] };
    show(<TaskGoodput goodput={free} />);
    expect(screen.queryByText("Cost")).toBeNull();
    expect(screen.getByText("No time was lost.")).toBeTruthy();
  });
  it("heads the columns of causes, with a cost only where there is a price", () => {
    const heads = () => within(screen.getByRole("table", { name: "Causes of lost time" })).getAllByRole("columnheader").map((each) => each.textContent);
    const { unmount } = show(<TaskGoodput goodput={goodput} />);
    expect(heads()).toEqual(["Lost", "Cost", "Cause"]);
    unmount();
    show(<TaskGoodput goodput={{ ...goodput, price: "", causes: goodput.causes.map((each) => ({ ...each, cost: null })) }} />);
    expect(heads()).toEqual(["Lost", "Cause"]);
  });
  it("says how much newest time of a running task is not counted yet", () => {
    const { unmount } = show(<TaskGoodput goodput={goodput} />);
    expect(screen.queryByText("Not counted yet")).toBeNull();
    unmount();
    show(<TaskGoodput goodput={{ ...goodput, pending_s: 12 }} />);
    expect(screen.getByText("Not counted yet").nextElementSibling!.textContent).toBe("12 s");
  });
  it("says what has no price", () => {
    const note = "4.0 worker-seconds were on workers that registered no GPU, so a price per GPU-hour does not apply";
    show(<TaskGoodput goodput={{ ...goodput, cost: null, lost_cost: null, notes: [note] }} />);
    expect(screen.getByText(`▲ ${note}`)).toBeTruthy();
  });
});

it("stacks the classes of each slice without gaps", () => {
  const [productive, lost] = layers(goodput.series);
  expect(productive).toEqual({ name: "productive", edges: [[0, 1], [0, 0.5]] });
  expect(lost).toEqual({ name: "replacement_wait", edges: [[1, 1], [0.5, 1]] });
});

it("asks with the price of the address, and keeps a new price there once it is complete", async () => {
  const requests = serve({ "/api/timeline/goodput": () => ({ body: goodput }) });
  const { user } = show(<GoodputView />, "#/goodput/train-1?price=2/worker-hour");
  await screen.findByText("waiting for a replacement");
  expect(requests[0]!.searchParams.get("price")).toBe("2/worker-hour");
  expect(requests[0]!.searchParams.get("task")).toBe("train-1");
  const field = screen.getByRole("textbox", { name: /Price/ });
  await user.clear(field);
  await user.type(field, "3/worker{Enter}");
  expect(location.hash).toContain("price=2/worker-hour");
  expect(field.getAttribute("aria-invalid")).toBe("true");
  await user.type(field, "-hour{Enter}");
  await waitFor(() => expect(location.hash).toContain("price=3%2Fworker-hour"));
  await waitFor(() => expect(requests.at(-1)!.searchParams.get("price")).toBe("3/worker-hour"));
});

it("shows runs, weeks and hosts, and which runs are left out", () => {
  const row = (name: string) => ({ name, total_s: 3600, productive_s: 1800, goodput: 0.5, cost: 3, seconds: {} });
  const found: RunsGoodput = {
    total_s: 3600, productive_s: 1800, goodput: 0.5, cost: 3, price: "3/worker-hour", currency: "$",
    runs: [row("train-1")], weeks: [row("2026-W47")], hosts: [row("host-a")], causes: goodput.causes,
    kinds: [{ kind: "WorkerLost exit", text: "worker lost: its process ended", seconds: 90, cost: 2, count: 3 }], left_out: ["old: it is damaged"], notes: [],
  };
  show(<RunsOverview found={found} />);
  for (const [table, name] of [["run", "train-1"], ["week", "2026-W47"], ["host", "host-a"]]) {
    expect(within(screen.getByRole("table", { name: `Goodput by ${table}` })).getByText(name!)).toBeTruthy();
  }
  const kinds = within(screen.getByRole("table", { name: "Lost time by kind of cause" })).getAllByRole("row");
  expect(kinds.map((each) => each.textContent)).toEqual(["CauseLostCausesCost", "worker lost: its process ended1 min 30 s3$2.00"]);
  expect(screen.getByText("▲ left out: old: it is damaged")).toBeTruthy();
  expect(screen.queryByRole("link")).toBeNull();
});

describe("amounts", () => {
  it("never show a small amount or share as 0, nor a missing one", () => {
    expect([money("$", 1234.5), money("$", 0.0004), money("€", 0), money("$", null)]).toEqual(["$1,234.50", "$0.0004", "€0.00", "–"]);
    expect([share(0), share(0.0001), share(0.125)]).toEqual(["0.0 %", "< 0.1 %", "12.5 %"]);
  });
  it("accept the prices of the API", () => {
    expect(["2.49/gpu-hour", "€3/worker-hour", "20 CHF/host-hour", "a=3/gpu-hour,2/gpu-hour"].every(isPrice)).toBe(true);
    expect(["2.49", "2/day", "x/gpu-hour", "a=/gpu-hour"].some(isPrice)).toBe(false);
  });
});
