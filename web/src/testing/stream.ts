/** A stand-in for `EventSource` that a test drives. */
import { vi } from "vitest";

export class FakeStream {
  static opened: FakeStream[] = [];
  readyState = 1;
  onmessage: ((event: { data: string }) => void) | null = null;
  onerror: (() => void) | null = null;
  onopen: (() => void) | null = null;

  constructor(readonly url: string) {
    FakeStream.opened.push(this);
  }

  addEventListener(): void {}

  close(): void {
    this.readyState = 2;
  }

  send(data: unknown): void {
    this.onmessage?.({ data: JSON.stringify(data) });
  }

  /** What a browser does when the server answers with an error status. */
  refuse(): void {
    this.readyState = 2;
    this.onerror?.();
  }
}

export function stubStreams(): FakeStream[] {
  FakeStream.opened = [];
  vi.stubGlobal("EventSource", Object.assign(FakeStream, { CONNECTING: 0, OPEN: 1, CLOSED: 2 }));
  return FakeStream.opened;
}
