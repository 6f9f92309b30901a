/** The timeline endpoints: the recorded past of the cluster, or of one archived run. */
import { address, api, bodyOf, pageOf, type Query } from "./client";
import type { components } from "./schema";
import type { Host } from "./types";

type Schemas = components["schemas"];

export type Bucket = Schemas["BucketAnswer"];
export type LaneSpan = Schemas["LaneSpan"];
export type LaneMark = Schemas["LaneMark"];
/** The API description calls fields with a default optional; the coordinator always sends them. */
export type Lane = Required<Schemas["LaneAnswer"]>;
export type TimelineEvent = Schemas["EventAnswer"];
export type LinkedEvent = Schemas["LinkAnswer"];
export type Operation = Schemas["OperationAnswer"];
export type WhyAnswer = Schemas["WhyAnswer"];
export type Question = Schemas["QuestionAnswer"];
export type HostHistory = Schemas["HostHistory"];
export type RecordedUsage = Schemas["UsageAnswer"];
export type Curve = Schemas["CurveAnswer"];
export type CurveAxis = Schemas["PointsAnswer"]["x"];
export type CurveSettings = Required<Schemas["SettingsAnswer"]>;
export type Media = Required<Schemas["MediaItem"]>;
/** The numbers of values between edges; `not_finite` values are in no bin. */
type HistogramAnswer = { edges: number[]; counts: number[]; not_finite?: number };
type PointsQuery = { task: string; name: string[]; x: CurveAxis; points: number; from?: number; to?: number; worker?: string };
/** The API description calls fields with a default optional; the coordinator always sends them. */
export type GoodputCause = Required<Schemas["CauseAnswer"]>;
export type GoodputClass = Required<Schemas["ClassShare"]>;
export type TimeClass = GoodputClass["name"];
export type Goodput = Omit<Required<Schemas["GoodputAnswer"]>, "causes" | "classes"> & { causes: GoodputCause[]; classes: GoodputClass[] };
export type GoodputRow = Schemas["GoodputRow"];
export type CauseKind = Schemas["CauseKind"];
export type RunsGoodput = Omit<Required<Schemas["RunsGoodput"]>, "causes"> & { causes: GoodputCause[] };
export type Stacks = Schemas["StacksAnswer"];
export type WorkerStacks = Schemas["WorkerStacks"];
export type ThreadStack = Schemas["ThreadStack"];
export type StackFrame = Schemas["StackFrame"];
type Signal = AbortSignal | undefined;
type Range = { from_ms: number; to_ms: number };
type EventFilters = { node?: string; kind?: string; task?: string; subject?: string; limit: number };

/** The name of the recorded run that the demo plays. */
export const DEMO = "demo";

export const archivedRuns = (signal?: Signal) => pageOf(api.GET("/api/runs", { params: { query: { limit: 200 } }, signal }));

/** The goodput over the log and all archived runs. */
export const runsGoodput = async (price: string, signal?: Signal) =>
  (await bodyOf(api.GET("/api/timeline/goodput/runs", { params: { query: { price } }, signal }))) as RunsGoodput;

/** References of workers' events contain slashes, which stay as they are. */
const pathSerializer = (path: string, { ref }: Record<string, unknown>) => path.replace("{ref}", encodeURI(String(ref)));

/** The endpoints for one archived run, or for the coordinator's own log when `run` is empty. */
export function timelineOf(run: string) {
  return {
    span: (signal?: Signal) => bodyOf(api.GET("/api/timeline/span", { params: { query: { run } }, signal })),
    density: (query: Range & { buckets: number }, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/density", { params: { query: { ...query, run } }, signal })),
    lanes: async (query: Range & { task?: string; node?: string; limit: number }, signal?: Signal) => {
      const answer = await bodyOf(api.GET("/api/timeline/lanes", { params: { query: { ...query, run } }, signal }));
      return { ...answer, lanes: answer.lanes as Lane[] };
    },
    at: (time_ms: number, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/at", { params: { query: { time_ms, run } }, signal })),
    events: (query: Range & EventFilters, signal?: Signal) =>
      pageOf(api.GET("/api/timeline/events", { params: { query: { ...query, run } }, signal })),
    newestEvents: (query: { to_ms?: number } & EventFilters, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/events", { params: { query: { ...query, newest: true, run } }, signal })),
    event: (ref: string, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/event/{ref}", { params: { path: { ref }, query: { run } }, pathSerializer, signal })),
    why: (query: Query, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/why", { params: { query: { ...query, run } }, signal })),
    questions: (signal?: Signal) => bodyOf(api.GET("/api/timeline/questions", { params: { query: { run } }, signal })),
    diff: (a: number, b: number, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/diff", { params: { query: { a, b, run } }, signal })),
    facts: (query: { time_ms: number; kinds: string; limit: number }, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/facts", { params: { query: { ...query, run } }, signal })),
    shards: (query: { dataset_id: string; time_ms: number; limit: number; cursor: string }, signal?: Signal) =>
      pageOf(api.GET("/api/timeline/shards", { params: { query: { ...query, run } }, signal })),
    metrics: (time_ms: number, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/metrics", { params: { query: { time_ms, run } }, signal })),
    /** The resource use of a worker before a moment; before now when it is null. */
    usage: (node: string, time_ms: number | null, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/usage", { params: { query: { node, time_ms, run } }, signal })),
    /** The hosts at a moment. */
    hosts: async (time_ms: number, signal?: Signal) =>
      (await bodyOf(api.GET("/api/timeline/hosts", { params: { query: { time_ms, run } }, signal }))) as Host[],
    /** The recorded health of a host before a moment; before now when it is null. */
    hostHealth: (host: string, time_ms: number | null, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/host-health", { params: { query: { host, time_ms, run } }, signal })),
    /** Without a price: by the setting `price`. */
    goodput: async (query: { task: string; price?: string }, signal?: Signal) =>
      (await bodyOf(api.GET("/api/timeline/goodput", { params: { query: { ...query, run } }, signal }))) as Goodput,
    /** The newest stacks of a task's workers before a moment; before now when it is null. */
    stacks: (task_id: string, time_ms: number | null, signal?: Signal) =>
      bodyOf(api.GET("/api/tasks/{task_id}/stacks", { params: { path: { task_id }, query: { time_ms, run } }, signal })),
    seek: (query: { predicate: string; from_ms: number; direction: "next" | "previous" }, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/seek", { params: { query: { ...query, run } }, signal })),
    curves: (task: string, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/curves", { params: { query: { task, run } }, signal })),
    curvePoints: (query: PointsQuery, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/curves/points", { params: { query: { ...query, run } }, signal })),
    curveMarkers: (task: string, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/curves/markers", { params: { query: { task, run } }, signal })),
    curveSettings: (task: string, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/curves/settings", { params: { query: { task, run } }, signal })),
    media: async (query: { task: string; limit: number; cursor?: string }, signal?: Signal) => {
      const page = await pageOf(api.GET("/api/timeline/media", { params: { query: { ...query, run } }, signal }));
      return { ...page, items: page.items as Media[] };
    },
    mediaText: (ref: string, signal?: Signal) =>
      bodyOf(api.GET("/api/timeline/media/{ref}", { params: { path: { ref }, query: { run } }, pathSerializer, parseAs: "text", signal })),
    /** A histogram is the JSON of a `HistogramAnswer`; the API description has only its bytes. */
    mediaHistogram: async (ref: string, signal?: Signal) =>
      (await bodyOf(api.GET("/api/timeline/media/{ref}", { params: { path: { ref }, query: { run } }, pathSerializer, parseAs: "json", signal }))) as unknown as HistogramAnswer,
    mediaAddress: (ref: string) => address(`/timeline/media/${encodeURI(ref)}`, { run }),
    exportAddress: (format: "perfetto" | "jsonl" | "parquet", range: Range) =>
      address("/timeline/export", { format, ...range, run }),
  };
}

export type Timeline = ReturnType<typeof timelineOf>;
