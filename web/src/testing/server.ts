/** A stand-in for the coordinator's REST API: answers by path, and records the requests. */
import { vi } from "vitest";

type Reply = { status?: number; body: unknown; headers?: Record<string, string> };
export type Routes = Record<string, (query: URLSearchParams, request: Request) => Reply | Promise<Reply>>;

export function serve(routes: Routes): URL[] {
  const requests: URL[] = [];
  vi.stubGlobal("fetch", async (input: string | Request) => {
    const url = new URL(typeof input === "string" ? input : input.url, "http://localhost:3000");
    requests.push(url);
    const route = routes[url.pathname];
    const missing = { status: 404, body: { error: { code: "not_found", message: `no route ${url.pathname}`, hint: "" } } };
    const request = typeof input === "string" ? new Request(url) : input;
    const { status = 200, body, headers = {} } = (await route?.(url.searchParams, request)) ?? missing as Reply;
    return new Response(JSON.stringify(body), { status, headers });
  });
  return requests;
}
