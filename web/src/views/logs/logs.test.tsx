import { act, screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { stubStreams } from "../../testing/stream";
import Logs from ".";

it("shows that new lines are missing while the coordinator refuses the stream", async () => {
  const streams = stubStreams();
  serve({
    "/api/logs": () => ({ body: [] }),
    "/api/logs/stream": () => ({ status: 503, body: { error: { code: "overloaded", message: "too many streams", hint: "Close another page." } } }),
  });
  show(<Logs />, "#/logs");
  await screen.findByText("No line matches");
  await act(async () => streams[0]!.refuse());
  expect((await screen.findByRole("alert")).textContent).toContain("New lines are not shown: too many streams. Close another page.");
});
