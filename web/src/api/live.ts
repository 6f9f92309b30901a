/** The live stream of the cluster's state: one connection for the whole page, reopened while the page is open. */
import { api, ApiError, BASE, bodyOf } from "./client";
import { applyPatch, type Cluster } from "./patches";
import { changePage } from "./standby-pages";
import type { Patch } from "./types";

export type Connection =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "stale"; since: number }
  | { state: "disconnected"; since: number; error: ApiError }
  | { state: "locked" };

export interface Live {
  connection: Connection;
  cluster: Cluster | null;
  /** The coordinator's clock minus this browser's. */
  skewMs: number;
  /** Whether the coordinator now has another version than when the page was loaded. */
  outdated: boolean;
}

/** The coordinator sends something at least every 5 s. */
const STALE_AFTER_MS = 12_000;
const PROBE_MS = 5000;
const REOPEN_MS = [1000, 2000, 5000];

/** The newest state; React reads it with `useSyncExternalStore`. */
export class LiveStore {
  private live: Live = { connection: { state: "connecting" }, cluster: null, skewMs: 0, outdated: false };
  private readonly listeners = new Set<() => void>();
  private source: EventSource | null = null;
  private reopenTimer: ReturnType<typeof setTimeout> | undefined;
  private staleTimer: ReturnType<typeof setTimeout> | undefined;
  private attempts = 0;
  private receivedAt = 0;
  private version = "";

  read = (): Live => this.live;

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Opens the stream, or opens it again. */
  open = (): void => {
    clearTimeout(this.reopenTimer);
    this.source?.close();
    const source = new EventSource(`${BASE}/live`, { withCredentials: true });
    this.source = source;
    source.onmessage = (event: MessageEvent<string>) => this.receive(JSON.parse(event.data) as Patch);
    source.onerror = () => void this.fail(source);
  };

  private receive(patch: Patch): void {
    this.attempts = 0;
    this.receivedAt = Date.now();
    clearTimeout(this.staleTimer);
    this.staleTimer = setTimeout(this.checkStale, STALE_AFTER_MS);
    const cluster = applyPatch(this.live.cluster, patch);
    const version = cluster.coordinator?.version ?? "";
    this.version ||= version;
    this.set({
      connection: this.live.connection.state === "live" ? this.live.connection : { state: "live" },
      cluster,
      skewMs: patch.at - this.receivedAt,
      outdated: version !== this.version,
    });
  }

  /** A broken network path can leave the stream open without data: ask the API, then open the stream again. */
  private readonly checkStale = async (): Promise<void> => {
    const receivedAt = this.receivedAt;
    this.set({ connection: { state: "stale", since: receivedAt } });
    const error = await probe();
    if (this.receivedAt !== receivedAt) return;
    if (error) this.set({ connection: this.connectionAfter(error) });
    if (error?.status === 0) void changePage(this.receivedAt);
    if (error?.status !== 401) this.reopen();
  };

  /** The browser reconnects after a broken connection, but not after a refusal. */
  private async fail(source: EventSource): Promise<void> {
    const refused = source.readyState === EventSource.CLOSED;
    const error = await probe();
    if (source !== this.source) return;
    if (error) this.set({ connection: this.connectionAfter(error) });
    if (error?.status === 0) void changePage(this.receivedAt);
    if (refused && error?.status !== 401) this.reopen();
  }

  private reopen(): void {
    const pause = REOPEN_MS[Math.min(this.attempts, REOPEN_MS.length - 1)];
    this.attempts += 1;
    clearTimeout(this.reopenTimer);
    this.reopenTimer = setTimeout(this.open, pause);
  }

  private connectionAfter(error: ApiError): Connection {
    clearTimeout(this.staleTimer);
    if (error.status === 401) return { state: "locked" };
    return { state: "disconnected", since: this.receivedAt || Date.now(), error };
  }

  private set(change: Partial<Live>): void {
    this.live = { ...this.live, ...change };
    for (const listener of this.listeners) listener();
  }
}

/** Why the API does not answer; null if it does. */
async function probe(): Promise<ApiError | null> {
  const status = bodyOf(api.GET("/api/status")).then(() => null, (error: unknown) => error);
  const late = new Promise((resolve) => setTimeout(() => resolve(ApiError.timeout(PROBE_MS)), PROBE_MS));
  const error = await Promise.race([status, late]);
  return error instanceof ApiError ? error : null;
}

export const live = new LiveStore();
