/**
 * Log lines as a stream: the newest of those that are there, then each as it comes. Bounded: the
 * oldest go when there are too many. The page hears of new lines once a frame, however many come.
 */
import { address, list, type Query } from "../api/client";
import type { LogEntry } from "../api/types";

export const KEPT = 100_000;
const PAGE = 1000;
const FIRST_PAGES = 3;

export interface Lines {
  entries: readonly LogEntry[];
  /** How many lines were taken in after the first page: what "N new" counts. */
  arrived: number;
  /** Where older lines go on; empty when there are none. */
  older: string;
  loading: boolean;
  skipped: number;
  fault: unknown;
}

const NONE: Lines = { entries: [], arrived: 0, older: "", loading: true, skipped: 0, fault: null };

/** Lines with more at the end; those that are known already are left out. */
export function appended(before: readonly LogEntry[], more: readonly LogEntry[]): LogEntry[] {
  const known = new Set(before.slice(-PAGE).map((entry) => entry.id));
  const all = [...before, ...more.filter((entry) => !known.has(entry.id))];
  return all.length > KEPT ? all.slice(all.length - KEPT) : all;
}

export class LogFeed {
  private lines = NONE;
  private readonly listeners = new Set<() => void>();
  private waiting: LogEntry[] = [];
  private frame = 0;
  private source: EventSource | null = null;
  private ending = new AbortController();

  constructor(
    private readonly filters: Query,
    private readonly until: number | null,
  ) {}

  read = (): Lines => this.lines;

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Loads what is there and follows, unless a moment of the past is shown. */
  async open(): Promise<void> {
    this.ending = new AbortController();
    this.set(NONE);
    const { signal } = this.ending;
    for (let page = 0; page < FIRST_PAGES && (page === 0 || this.lines.older); page += 1) {
      if (!(await this.loadOlder())) return;
    }
    if (this.until !== null || signal.aborted) return;
    this.source = new EventSource(address("/logs/stream", this.filters), { withCredentials: true });
    this.source.onmessage = (event: MessageEvent<string>) => {
      this.waiting.push(JSON.parse(event.data) as LogEntry);
      this.frame ||= requestAnimationFrame(this.flush);
    };
    this.source.addEventListener("skipped", (event: MessageEvent<string>) => {
      const { count } = JSON.parse(event.data) as { count: number };
      this.set({ skipped: this.lines.skipped + count });
    });
  }

  /** One more page of older lines; tells whether that worked. */
  async loadOlder(): Promise<boolean> {
    const query = { ...this.filters, limit: PAGE, cursor: this.lines.older, until_ms: this.until };
    const { signal } = this.ending;
    this.set({ loading: true });
    try {
      const { items, next } = await list<LogEntry>("/logs", query, signal);
      const entries = [...items.toReversed(), ...this.lines.entries];
      this.set({ entries, older: next, loading: false, fault: null });
      return true;
    } catch (fault) {
      if (!signal.aborted) this.set({ loading: false, fault });
      return false;
    }
  }

  close = (): void => {
    this.ending.abort();
    this.source?.close();
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  };

  private flush = (): void => {
    this.frame = 0;
    const taken = this.waiting;
    this.waiting = [];
    const before = this.lines.entries;
    const entries = appended(before, taken);
    this.set({ entries, arrived: this.lines.arrived + taken.length });
  };

  private set(change: Partial<Lines>): void {
    this.lines = { ...this.lines, ...change };
    for (const listener of this.listeners) listener();
  }
}
