/** What the page knows of the cluster, and how a patch changes it. No rules, only rows. */
import type {
  Agent, Attention, Barrier, Checkpoint, Dashboard, Dataset, Happening, LogEntry, Metrics, Patch,
  Status, Task, Totals, Worker,
} from "./types";

export interface Rows {
  workers: Worker;
  tasks: Task;
  checkpoints: Checkpoint;
  barriers: Barrier;
  datasets: Dataset;
  agents: Agent;
}
export type Collection = keyof Rows;

export type Cluster = {
  at: number;
  coordinator: Status | null;
  metrics: Metrics | null;
  totals: Totals | null;
  attention: Attention[];
  /** The newest first, as of the log lines. */
  happened: Happening[];
  logs: LogEntry[];
} & { [Name in Collection]: ReadonlyMap<string, Rows[Name]> };

const COLLECTIONS: Collection[] = [
  "workers", "tasks", "checkpoints", "barriers", "datasets", "agents",
];

/** What a row is kept by: its id, a checkpoint's within its task. */
export function keyOf(name: Collection, row: Rows[Collection]): string {
  return name === "checkpoints" ? `${(row as Checkpoint).task_id}/${row.id}` : row.id;
}

const EMPTY: Cluster = {
  at: 0,
  coordinator: null,
  metrics: null,
  totals: null,
  attention: [],
  happened: [],
  logs: [],
  workers: new Map(),
  tasks: new Map(),
  checkpoints: new Map(),
  barriers: new Map(),
  datasets: new Map(),
  agents: new Map(),
};

/** The cluster after a patch; what did not change stays the same object. */
export function patched(before: Cluster | null, patch: Patch): Cluster {
  const base = before === null || patch.reset ? EMPTY : before;
  const after: Cluster = {
    ...base,
    at: patch.at,
    coordinator: patch.coordinator ?? base.coordinator,
    metrics: patch.metrics ?? base.metrics,
    totals: patch.totals ?? base.totals,
    attention: patch.attention ?? base.attention,
    happened: patch.happened ?? base.happened,
    logs: patch.logs ?? base.logs,
  };
  for (const name of COLLECTIONS) {
    const rows = patch[name];
    const gone = patch.gone?.[name];
    if (!rows?.length && !gone?.length) continue;
    const changed = new Map<string, Rows[Collection]>(base[name]);
    for (const row of rows ?? []) changed.set(keyOf(name, row), row);
    for (const key of gone ?? []) changed.delete(key);
    Object.assign(after, { [name]: changed });
  }
  return after;
}

/** The cluster as `/api/dashboard`, or the timeline for a moment of the past, tells it. */
export function fromDashboard(told: Dashboard, at: number): Cluster {
  const { coordinator, metrics, totals, attention, happened, logs } = told;
  const { workers, tasks, checkpoints, barriers, datasets } = told;
  const rows = { workers, tasks, checkpoints, barriers, datasets };
  return patched(null, { mark: "", at, coordinator, metrics, totals, attention, happened, logs, ...rows });
}
