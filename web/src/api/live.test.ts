import { describe, expect, it, vi } from "vitest";
import { serve } from "../testing/server";
import { stubStreams } from "../testing/stream";
import { LiveStore } from "./live";

const patch = (version: string) => ({ mark: "a-1", at: Date.now(), reset: true, coordinator: { version } });
const refused = (status: number) => ({ status, body: { error: { code: "x", message: "no", hint: "" } } });

describe("the live stream", () => {
  it("is live after the first patch, and outdated when the version changes", () => {
    const streams = stubStreams();
    const store = new LiveStore();
    store.open();
    streams[0]!.send(patch("1.0.0"));
    expect(store.read()).toMatchObject({ connection: { state: "live" }, outdated: false });
    streams[0]!.send(patch("2.0.0"));
    expect(store.read().outdated).toBe(true);
  });
  it("asks for a token when the API answers 401, and does not try again by itself", async () => {
    vi.useFakeTimers();
    const streams = stubStreams();
    serve({ "/api/status": () => refused(401) });
    const store = new LiveStore();
    store.open();
    streams[0]!.refuse();
    await vi.waitFor(() => expect(store.read().connection.state).toBe("locked"));
    await vi.advanceTimersByTimeAsync(30_000);
    expect(streams).toHaveLength(1);
  });
  it("opens the stream again after a refusal, with the reason", async () => {
    vi.useFakeTimers();
    const streams = stubStreams();
    serve({ "/api/status": () => refused(503) });
    const store = new LiveStore();
    store.open();
    streams[0]!.refuse();
    await vi.waitFor(() => expect(store.read().connection).toMatchObject({ state: "disconnected", error: { message: "no" } }));
    await vi.advanceTimersByTimeAsync(1000);
    expect(streams).toHaveLength(2);
  });
});
