/** The live stream: one connection for the whole page, reopened for as long as it is open. */
import { BASE, ApiError, get } from "./client";
import { patched, type Cluster } from "./patches";
import type { Patch, Status } from "./types";

export type Connection =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "stale"; since: number }
  | { state: "gone"; since: number; message: string; hint: string }
  | { state: "locked" };

export interface Live {
  connection: Connection;
  cluster: Cluster | null;
  /** How far the coordinator's clock is ahead of this browser's. */
  skewMs: number;
  /** The version that answered first, if another answers now: the page is older than it. */
  outdated: boolean;
}

/** The coordinator sends something at least every 5 s. */
const SILENCE_MS = 12_000;
const PROBE_MS = 5000;
const REOPEN_MS = [1000, 2000, 5000];

type Listener = () => void;

/** Holds what is known now; React reads it with `useSyncExternalStore`. */
export class LiveStore {
  private live: Live = {
    connection: { state: "connecting" },
    cluster: null,
    skewMs: 0,
    outdated: false,
  };
  private readonly listeners = new Set<Listener>();
  private source: EventSource | null = null;
  private reopening: ReturnType<typeof setTimeout> | undefined;
  private silence: ReturnType<typeof setTimeout> | undefined;
  private attempts = 0;
  private heardAt = 0;
  private version = "";

  read = (): Live => this.live;

  subscribe = (listener: Listener): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Connects, or connects anew. */
  open = (): void => {
    clearTimeout(this.reopening);
    this.source?.close();
    const source = new EventSource(`${BASE}/live`, { withCredentials: true });
    this.source = source;
    source.onmessage = (event: MessageEvent<string>) => this.take(JSON.parse(event.data) as Patch);
    source.onerror = () => void this.failed(source);
  };

  private take(patch: Patch): void {
    this.attempts = 0;
    this.heardAt = Date.now();
    clearTimeout(this.silence);
    this.silence = setTimeout(this.overdue, SILENCE_MS);
    const cluster = patched(this.live.cluster, patch);
    const version = cluster.coordinator?.version ?? "";
    this.version ||= version;
    this.set({
      connection: this.live.connection.state === "live" ? this.live.connection : { state: "live" },
      cluster,
      skewMs: patch.at - this.heardAt,
      outdated: version !== this.version,
    });
  }

  /** Nothing arrived for too long: a broken network path may leave the stream open for ever. */
  private readonly overdue = async (): Promise<void> => {
    const heardAt = this.heardAt;
    this.set({ connection: { state: "stale", since: heardAt } });
    const fault = await probe();
    if (this.heardAt !== heardAt) return;
    if (fault) this.set({ connection: this.told(fault) });
    if (fault?.status !== 401) this.reopen();
  };

  /** The browser reconnects by itself after a break; after a refusal we do, once we know why. */
  private async failed(source: EventSource): Promise<void> {
    const refused = source.readyState === EventSource.CLOSED;
    const fault = await probe();
    if (source !== this.source) return;
    if (fault) this.set({ connection: this.told(fault) });
    if (refused && fault?.status !== 401) this.reopen();
  }

  private reopen(): void {
    const pause = REOPEN_MS[Math.min(this.attempts, REOPEN_MS.length - 1)];
    this.attempts += 1;
    clearTimeout(this.reopening);
    this.reopening = setTimeout(this.open, pause);
  }

  private told(fault: ApiError): Connection {
    clearTimeout(this.silence);
    if (fault.status === 401) return { state: "locked" };
    const since = this.heardAt || Date.now();
    return { state: "gone", since, message: fault.message, hint: fault.hint };
  }

  private set(change: Partial<Live>): void {
    this.live = { ...this.live, ...change };
    for (const listener of this.listeners) listener();
  }
}

/** Why the API does not answer; null if it does. */
async function probe(): Promise<ApiError | null> {
  const asked = get<Status>("/status").then(() => null, (error: unknown) => error);
  const late = new ApiError(0, "slow", `the coordinator did not answer in ${PROBE_MS / 1000} s`, "start it with: strata up");
  const fault = await Promise.race([asked, new Promise((resolve) => setTimeout(() => resolve(late), PROBE_MS))]);
  return fault instanceof ApiError ? fault : null;
}

export const live = new LiveStore();
