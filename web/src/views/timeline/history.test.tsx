import { screen, waitFor } from "@testing-library/react";
import { expect, it } from "vitest";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { HistoryList } from "./history";

const event = (number: number) => ({ ref: `@${number}`, at_ms: number, kind: "TaskStateChanged", summary: `event ${number}`, node: "coordinator", tags: {} });

it("shows the newest events of a task, newest first", async () => {
  const requests = serve({ "/api/timeline/events": (query) => ({ body: query.get("newest") ? [event(900), event(899)] : [event(1), event(2)] }) });
  show(<HistoryList task="train-1" />);
  await waitFor(() => expect(screen.getAllByRole("listitem")).toHaveLength(2));
  expect(screen.getAllByRole("listitem").map((item) => item.textContent)).toEqual([expect.stringContaining("event 900"), expect.stringContaining("event 899")]);
  expect(requests[0]?.searchParams.get("task")).toBe("train-1");
});
