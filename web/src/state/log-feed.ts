/**
 * The log lines of the Logs view: the newest stored lines, then each line as the coordinator streams it.
 * At most `KEPT` lines stay in memory, and React is notified once per frame.
 */
import { address, api, pageOf, refusalOf, type ApiError } from "../api/client";
import type { operations } from "../api/schema";
import type { LogEntry } from "../api/types";

export const KEPT = 100_000;
const PAGE = 1000;
const FIRST_PAGES = 3;
const REOPEN_MS = [1000, 2000, 5000];

type LogQuery = NonNullable<operations["ApiLogsListLogs"]["parameters"]["query"]>;
export type LogFilters = { level?: string; source?: string; task_id?: string; worker_id?: string };

export interface LogState {
  entries: readonly LogEntry[];
  /** Lines received after the first pages: counted by the "new" button. */
  arrived: number;
  /** Cursor of the next older page; empty at the beginning of the log. */
  older: string;
  loading: boolean;
  /** Lines that the coordinator left out because they came too fast. */
  skipped: number;
  error: unknown;
  /** Why the stream is interrupted, while it is. */
  interrupted: ApiError | null;
}

const NONE: LogState = { entries: [], arrived: 0, older: "", loading: true, skipped: 0, error: null, interrupted: null };

/** Lines with new ones appended, without duplicates. */
export function appended(before: readonly LogEntry[], more: readonly LogEntry[]): LogEntry[] {
  const known = new Set(before.slice(-PAGE).map((entry) => entry.id));
  const all = [...before, ...more.filter((entry) => !known.has(entry.id))];
  return all.length > KEPT ? all.slice(all.length - KEPT) : all;
}

export class LogFeed {
  private state = NONE;
  private readonly listeners = new Set<() => void>();
  private received: LogEntry[] = [];
  private frame = 0;
  private source: EventSource | null = null;
  private reopenTimer: ReturnType<typeof setTimeout> | undefined;
  private attempts = 0;
  private closing = new AbortController();

  constructor(
    private readonly filters: LogFilters,
    private readonly until: number | null,
  ) {}

  read = (): LogState => this.state;

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Loads the newest stored lines, then follows the stream unless a past moment is shown. */
  async open(): Promise<void> {
    this.closing = new AbortController();
    this.set(NONE);
    const { signal } = this.closing;
    for (let page = 0; page < FIRST_PAGES && (page === 0 || this.state.older); page += 1) {
      if (!(await this.loadOlder())) return;
    }
    if (this.until === null && !signal.aborted) this.follow();
  }

  /** Loads one more page of older lines; returns whether that worked. */
  async loadOlder(): Promise<boolean> {
    const { signal } = this.closing;
    this.set({ loading: true });
    try {
      const { items, next } = await this.page(this.state.older, signal);
      const entries = [...items.toReversed(), ...this.state.entries];
      this.set({ entries, older: next, loading: false, error: null });
      return true;
    } catch (error) {
      if (!signal.aborted) this.set({ loading: false, error });
      return false;
    }
  }

  close = (): void => {
    this.closing.abort();
    this.source?.close();
    clearTimeout(this.reopenTimer);
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  };

  private page(cursor: string, signal: AbortSignal) {
    const query = { ...this.filters, limit: PAGE, cursor, until_ms: this.until } as LogQuery;
    return pageOf(api.GET("/api/logs", { params: { query }, signal }));
  }

  private get streamAddress(): string {
    return address("/logs/stream", this.filters);
  }

  private follow(): void {
    const source = new EventSource(this.streamAddress, { withCredentials: true });
    this.source = source;
    source.onopen = () => {
      this.attempts = 0;
    };
    source.onmessage = (event: MessageEvent<string>) => {
      this.received.push(JSON.parse(event.data) as LogEntry);
      this.frame ||= requestAnimationFrame(this.flush);
    };
    source.addEventListener("skipped", (event: MessageEvent<string>) => {
      const { count } = JSON.parse(event.data) as { count: number };
      this.set({ skipped: this.state.skipped + count });
    });
    // After a broken connection the browser reconnects by itself; after a refusal it does not.
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) void this.retry();
    };
  }

  /** Shows why the stream was refused, and tries again until the coordinator accepts it. */
  private async retry(): Promise<void> {
    const { signal } = this.closing;
    const refusal = await refusalOf(this.streamAddress);
    if (signal.aborted) return;
    if (refusal) this.set({ interrupted: refusal });
    const pause = REOPEN_MS[Math.min(this.attempts, REOPEN_MS.length - 1)];
    this.attempts += 1;
    this.reopenTimer = setTimeout(() => void (refusal ? this.retry() : this.resume(signal)), pause);
  }

  /** Loads the lines that were missed, then follows again. */
  private async resume(signal: AbortSignal): Promise<void> {
    try {
      await this.catchUp(signal);
    } catch {
      if (!signal.aborted) void this.retry();
      return;
    }
    if (signal.aborted) return;
    this.set({ interrupted: null });
    this.follow();
  }

  private async catchUp(signal: AbortSignal): Promise<void> {
    const newest = this.state.entries.at(-1)?.id;
    const found: LogEntry[] = [];
    let cursor = "";
    for (let page = 0; page < FIRST_PAGES; page += 1) {
      const { items, next } = await this.page(cursor, signal);
      found.push(...items);
      const reached = found.findIndex(({ id }) => id === newest);
      if (reached >= 0) return this.set({ entries: appended(this.state.entries, found.slice(0, reached).toReversed()) });
      cursor = next;
      if (!next) break;
    }
    // More was missed than is loaded: start again from the newest lines, so that none are left out unseen.
    this.set({ entries: found.toReversed(), older: cursor });
  }

  private flush = (): void => {
    this.frame = 0;
    const received = this.received;
    this.received = [];
    this.set({ entries: appended(this.state.entries, received), arrived: this.state.arrived + received.length });
  };

  private set(change: Partial<LogState>): void {
    this.state = { ...this.state, ...change };
    for (const listener of this.listeners) listener();
  }
}
