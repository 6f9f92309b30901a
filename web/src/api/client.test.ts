import { describe, expect, it, vi } from "vitest";
import { serve } from "../testing/server";
import { api, bodyOf, curl, pageOf } from "./client";
import { timelineOf } from "./timeline";

describe("the client", () => {
  it("returns a page with its total and its cursor", async () => {
    serve({ "/api/logs": () => ({ body: [], headers: { "X-Total-Count": "70", "X-Next-Cursor": "c" } }) });
    expect(await pageOf(api.GET("/api/logs", { params: { query: { limit: 5 } } }))).toEqual({ items: [], total: 70, next: "c" });
  });
  it("leaves out parameters without a value and encodes ids", async () => {
    const requests = serve({ "/api/tasks/a%2Fb": () => ({ body: {} }), "/api/logs": () => ({ body: [] }) });
    await bodyOf(api.GET("/api/tasks/{task_id}", { params: { path: { task_id: "a/b" } } }));
    await pageOf(api.GET("/api/logs", { params: { query: { task_id: "", regex: false, until_ms: null, limit: 0 } } }));
    expect(requests[1]?.search).toBe("?limit=0");
  });
  it("throws the coordinator's message and hint", async () => {
    serve({ "/api/status": () => ({ status: 409, body: { error: { code: "conflict", message: "busy", hint: "wait" } } }) });
    await expect(bodyOf(api.GET("/api/status"))).rejects.toMatchObject({ status: 409, code: "conflict", message: "busy", hint: "wait", command: "" });
  });
  it("offers the command that starts a coordinator which cannot be reached", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("failed to fetch")));
    await expect(bodyOf(api.GET("/api/status"))).rejects.toMatchObject({ status: 0, code: "unreachable", command: "strata up" });
  });
  it("quotes a request for a shell", () => {
    expect(curl("/tasks", {}, { name: "it's" })).toBe(
      `curl -X POST 'http://localhost:3000/api/tasks' -H 'Content-Type: application/json' -d '{"name":"it'\\''s"}'`,
    );
  });
});

describe("the timeline of two runs", () => {
  it("asks for each run by its name, whatever was asked for last", async () => {
    const requests = serve({ "/api/timeline/span": () => ({ body: {} }) });
    const [own, archived] = [timelineOf(""), timelineOf("train-1")];
    await Promise.all([own.span(), archived.span(), own.span()]);
    expect(requests.map((url) => url.searchParams.get("run"))).toEqual([null, "train-1", null]);
  });
  it("keeps the slashes of an event's reference", async () => {
    const requests = serve({ "/api/timeline/event/w0/1/5": () => ({ body: {} }) });
    await timelineOf("").event("w0/1/5");
    expect(requests[0]?.pathname).toBe("/api/timeline/event/w0/1/5");
  });
});
