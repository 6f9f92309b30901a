/** The timeline's door: the past of the cluster, as it was and why. */
import { address, get as ask, list as page, type Query } from "./client";
import type { components } from "./schema";
import type { Fact, History, Shard } from "./types";

type Schemas = components["schemas"];

export type TimelineSpan = Schemas["SpanAnswer"];
export type Bucket = Schemas["BucketAnswer"];
export type Density = Schemas["DensityAnswer"];
export type LaneSpan = Schemas["LaneSpan"];
export type LaneMark = Schemas["LaneMark"];
export type Lane = Schemas["LaneAnswer"];
export type Lanes = Schemas["LanesAnswer"];
export type TimelineEvent = Schemas["EventAnswer"];
export type Linked = Schemas["LinkAnswer"];
export type Operation = Schemas["OperationAnswer"];
export type EventDetail = Schemas["EventDetail"];
export type Why = Schemas["WhyAnswer"];
export type Question = Schemas["QuestionAnswer"];
export type Diff = Schemas["DiffAnswer"];
export type Found = Schemas["SeekAnswer"];
export type PastDashboard = Schemas["AtResponse"];
export type Run = Schemas["RunRow"];
export type UsageThen = Schemas["UsageAnswer"];
type Signal = AbortSignal | undefined;
type Range = { from_ms: number; to_ms: number };

const door = "/timeline";

/** The recorded run that the demo plays. */
export const DEMO = "demo";

let run = "";

/** From here on the past is that of an archived run; of the coordinator's own log without a name. */
export function readRun(name: string): void {
  run = name;
}

const get = <Answer>(path: string, query: Query, signal: Signal) => ask<Answer>(path, { ...query, run }, signal);
const list = <Item>(path: string, query: Query, signal: Signal) => page<Item>(path, { ...query, run }, signal);

export const runs = (signal?: Signal) => page<Run>("/runs", { limit: 200 }, signal);

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
  query: Partial<Range> & { node?: string; kind?: string; task?: string; subject?: string; limit?: number },
  signal?: Signal,
) => list<TimelineEvent>(`${door}/events`, query, signal);

export const event = (ref: string, signal?: Signal) =>
  get<EventDetail>(`${door}/event/${encodeURI(ref)}`, {}, signal);

export const why = (query: Query, signal?: Signal) =>
  get<Why>(`${door}/why`, query, signal);

export const questions = (signal?: Signal) => get<Question[]>(`${door}/questions`, {}, signal);

export const diff = (a: number, b: number, signal?: Signal) =>
  get<Diff>(`${door}/diff`, { a, b }, signal);

export const facts = (query: { time_ms: number; kinds: string; limit: number }, signal?: Signal) =>
  get<Fact[]>(`${door}/facts`, query, signal);

export const shards = (query: { dataset_id: string; time_ms: number; limit: number; cursor: string }, signal?: Signal) =>
  list<Shard>(`${door}/shards`, query, signal);

export const metrics = (time_ms: number, signal?: Signal) => get<History>(`${door}/metrics`, { time_ms }, signal);

/** What a worker used before a moment; before now when there is none. */
export const usage = (node: string, time_ms: number | null, signal?: Signal) =>
  get<UsageThen>(`${door}/usage`, { node, time_ms }, signal);

export const seek = (
  query: { predicate: string; from_ms: number; direction: "next" | "previous" },
  signal?: Signal,
) => get<Found>(`${door}/seek`, query, signal);

export const exportAddress = (format: "perfetto" | "jsonl" | "parquet", range: Range) =>
  address(`${door}/export`, { format, ...range, run });
