import { describe, expect, it, vi } from "vitest";
import { answeringPage } from "./standby-pages";

/** Answers of the health check by address; an address without one refuses the connection. */
function serveHealth(modes: Record<string, string>): void {
  vi.stubGlobal("fetch", async (url: string) => {
    const mode = modes[url.replace("/api/health", "")];
    if (mode === undefined) throw new TypeError("Failed to fetch");
    return new Response(JSON.stringify({ status: "ok", mode }));
  });
}

const PAGES = ["http://head1:3000", "http://head2:3000", "http://head3:3000"];

describe("the page to change to", () => {
  it("is that of the coordinator that leads", async () => {
    serveHealth({ "http://head2:3000": "standby", "http://head3:3000": "live" });
    expect(await answeringPage(PAGES, true)).toBe("http://head3:3000");
  });
  it("is none while no coordinator leads", async () => {
    serveHealth({ "http://head2:3000": "standby" });
    expect(await answeringPage(PAGES, true)).toBeNull();
  });
  it("is that of a standby if one that answers is enough", async () => {
    serveHealth({ "http://head2:3000": "standby" });
    expect(await answeringPage(PAGES, false)).toBe("http://head2:3000");
  });
});
