/** The timeline's door: the past of the cluster, as it was and why. */
import { address, get, list } from "./client";
import type { Dashboard } from "./types";

export interface Node {
  id: string;
  role: string;
  events: number;
  gaps: number;
}
export interface Trust {
  verdict: string;
  findings: string[];
}
export interface TimelineSpan {
  from_ms: number;
  to_ms: number;
  first_position: number;
  last_position: number;
  facts: number;
  worker_events: number;
  nodes: Node[];
  trust: Trust;
}
export interface Bucket {
  facts: number;
  events: number;
  losses: number;
  recoveries: number;
  checkpoints: number;
}
export interface Density {
  from_ms: number;
  to_ms: number;
  buckets: Bucket[];
}
export interface LaneSpan {
  from_ms: number;
  to_ms: number | null;
  kind: string;
  label: string;
  ref: string;
  ok: boolean | null;
  count?: number;
}
export interface LaneMark {
  at_ms: number;
  kind: string;
  label: string;
  ref: string;
}
export interface Lane {
  node: string;
  label: string;
  task: string;
  rank: number;
  spans: LaneSpan[];
  marks: LaneMark[];
}
export interface Lanes {
  lanes: Lane[];
  truncated: boolean;
  next: string | null;
}
export interface TimelineEvent {
  ref: string;
  at_ms: number;
  node: string;
  kind: string;
  summary: string;
  step?: number | null;
  tags: Record<string, unknown>;
}
export interface Linked {
  ref: string;
  kind: string;
  node: string;
  at_ms: number;
  summary: string;
}
export interface Operation {
  op: string;
  started: string | null;
  completed: string | null;
  duration_ms: number | null;
}
export interface EventDetail {
  ref: string;
  at_ms: number;
  node: string;
  incarnation: number;
  seq: number;
  position: number | null;
  kind: string;
  version: number;
  body: Record<string, unknown>;
  tags: Record<string, unknown>;
  operation: Operation | null;
  causes: Linked[];
  effects: Linked[];
}
export interface StoryEntry {
  ref: string;
  at_ms: number;
  node: string;
  kind: string;
  text: string;
}
export interface Story {
  subject: string;
  entries: StoryEntry[];
}
export interface Why {
  question: string;
  verdict: "yes" | "no" | "open" | "unknown";
  answer: string;
  chain: { ref: string; at_ms: number; node: string; text: string }[];
  cost: { seconds: number; workers: number; text: string } | null;
  findings: string[];
  trust: Trust | string | null;
}
export interface Question {
  name: string;
  text: string;
  params: { name: string; kind: string; required: boolean }[];
}
export interface Diff {
  a_ms: number;
  b_ms: number;
  changes: { path: string; subject: string; before: unknown; after: unknown; text: string }[];
}
export type PastDashboard = Dashboard & {
  as_of: { time_ms: number; position: number; live: false };
  nodes: { id: string; doing: string; open_operations: unknown[] }[];
};

type Signal = AbortSignal | undefined;
type Range = { from_ms: number; to_ms: number };

const door = "/timeline";

export const span = (signal?: Signal) => get<TimelineSpan>(`${door}/span`, {}, signal);

export const density = (query: Range & { buckets: number; task?: string }, signal?: Signal) =>
  get<Density>(`${door}/density`, query, signal);

export const lanes = (query: Range & { task?: string; limit?: number }, signal?: Signal) =>
  get<Lanes>(`${door}/lanes`, query, signal);

export const at = (
  query: { time_ms?: number; position?: number; step?: number; task?: string },
  signal?: Signal,
) => get<PastDashboard>(`${door}/at`, query, signal);

export const events = (
  query: Range & { node?: string; kind?: string; task?: string; limit?: number; cursor?: string },
  signal?: Signal,
) => list<TimelineEvent>(`${door}/events`, query, signal);

export const event = (ref: string, signal?: Signal) =>
  get<EventDetail>(`${door}/event/${encodeURIComponent(ref)}`, {}, signal);

export const story = (subject: string, limit: number, signal?: Signal) =>
  get<Story>(`${door}/story`, { subject, limit }, signal);

export const why = (query: { ref?: string; question?: string }, signal?: Signal) =>
  get<Why>(`${door}/why`, query, signal);

export const questions = (signal?: Signal) => get<Question[]>(`${door}/questions`, {}, signal);

export const diff = (a: number, b: number, signal?: Signal) =>
  get<Diff>(`${door}/diff`, { a, b }, signal);

export const seek = (
  query: { predicate: string; from_ms: number; direction: "next" | "previous" },
  signal?: Signal,
) => get<{ at_ms: number; ref: string; text: string }>(`${door}/seek`, query, signal);

export const exportAddress = (format: "perfetto" | "jsonl" | "parquet", range: Range) =>
  address(`${door}/export`, { format, ...range });
