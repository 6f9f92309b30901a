import { expect, it, vi } from "vitest";
import { serve } from "../testing/server";
import { stubStreams } from "../testing/stream";
import { LogFeed } from "./log-feed";

const line = (number: number) => ({ id: `log_${number}`, timestamp: number, level: "info", message: `line ${number}`, source: "worker", task_id: "", worker_id: "w0", stream: "" });
const refusal = { status: 503, body: { error: { code: "overloaded", message: "too many streams", hint: "close another page" } } };

it("says why the coordinator refused the stream, opens it again, and loads the lines between", async () => {
  vi.useFakeTimers();
  const streams = stubStreams();
  let newest = 2;
  let refusing = false;
  serve({
    "/api/logs": () => ({ body: [...Array(newest).keys()].map((number) => line(newest - number)) }),
    "/api/logs/stream": () => (refusing ? refusal : { body: "" }),
  });
  const feed = new LogFeed({}, null);
  await feed.open();
  expect(feed.read().entries).toHaveLength(2);
  refusing = true;
  streams[0]!.refuse();
  await vi.waitFor(() => expect(feed.read().interrupted?.message).toBe("too many streams"));
  refusing = false;
  newest = 5;
  await vi.advanceTimersByTimeAsync(10_000);
  expect(streams.length).toBeGreaterThan(1);
  expect(feed.read().interrupted).toBeNull();
  expect(feed.read().entries.map(({ id }) => id)).toEqual(["log_1", "log_2", "log_3", "log_4", "log_5"]);
  feed.close();
});

it("starts again from the newest lines when more was missed than it loads", async () => {
  vi.useFakeTimers();
  const streams = stubStreams();
  let first = 1;
  serve({
    "/api/logs": (query) => ({ body: [line(first + 1), line(first)], headers: { "X-Next-Cursor": query.get("cursor") ? "" : "more" } }),
    "/api/logs/stream": () => ({ body: "" }),
  });
  const feed = new LogFeed({}, null);
  await feed.open();
  first = 9000;
  streams[0]!.refuse();
  await vi.advanceTimersByTimeAsync(10_000);
  expect(new Set(feed.read().entries.map(({ id }) => id))).toEqual(new Set(["log_9000", "log_9001"]));
  feed.close();
});
