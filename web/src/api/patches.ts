/** The state of the cluster as the page holds it, and how a patch changes it. */
import type {
  Agent, Alert, Attention, Barrier, Checkpoint, Dashboard, Dataset, Host, LogEntry, Metrics, Patch,
  Status, Task, Totals, Worker,
} from "./types";
import type { TimelineEvent } from "./timeline";

export interface Rows {
  workers: Worker;
  tasks: Task;
  checkpoints: Checkpoint;
  barriers: Barrier;
  datasets: Dataset;
  agents: Agent;
  hosts: Host;
  alerts: Alert;
}
export type Collection = keyof Rows;

export type Cluster = {
  at: number;
  coordinator: Status | null;
  metrics: Metrics | null;
  totals: Totals | null;
  attention: Attention[];
  /** The newest events first. */
  happened: TimelineEvent[];
  logs: LogEntry[];
} & { [Name in Collection]: ReadonlyMap<string, Rows[Name]> };

const COLLECTIONS: Collection[] = [
  "workers", "tasks", "checkpoints", "barriers", "datasets", "agents", "hosts", "alerts",
];

/** The key of a row: its id; for a checkpoint its task and its id. */
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
  hosts: new Map(),
  alerts: new Map(),
};

/** The cluster after a patch; unchanged rows stay the same objects. */
export function applyPatch(before: Cluster | null, patch: Patch): Cluster {
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

/** The cluster from a dashboard response: of now, or of a past moment. */
export function fromDashboard(response: Dashboard, at: number): Cluster {
  const { coordinator, metrics, totals, attention, happened, logs } = response;
  const { workers, tasks, checkpoints, barriers, datasets, alerts } = response;
  const rows = { workers, tasks, checkpoints, barriers, datasets, alerts };
  return applyPatch(null, { mark: "", at, coordinator, metrics, totals, attention, happened, logs, ...rows });
}
