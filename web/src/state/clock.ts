/** Clocks that tick for all components at once: a table with a thousand ages has one timer. */
import { useSyncExternalStore } from "react";

class Ticker {
  private now = Date.now();
  private timer: ReturnType<typeof setInterval> | undefined;
  private readonly listeners = new Set<() => void>();

  constructor(private readonly everyMs: number) {}

  read = (): number => this.now;

  subscribe = (listener: () => void): (() => void) => {
    if (this.listeners.size === 0) {
      this.now = Date.now();
      this.timer = setInterval(this.tick, this.everyMs);
    }
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) clearInterval(this.timer);
    };
  };

  private tick = (): void => {
    this.now = Date.now();
    for (const listener of this.listeners) listener();
  };
}

const TICKERS = { second: new Ticker(1000), quarterMinute: new Ticker(15_000), minute: new Ticker(60_000) };
export type Period = keyof typeof TICKERS;

/** This browser's time, updated once per period. */
export function useBrowserTime(period: Period): number {
  return useSyncExternalStore(TICKERS[period].subscribe, TICKERS[period].read);
}
