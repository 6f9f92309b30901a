/** The table of workers. */
import type { Worker } from "../../api/types";
import { bytes, count, percent } from "../../lib/format";
import { hrefTo } from "../../state/url";
import { Mark, Meter } from "../../ui/state-mark";
import { Table, type Column } from "../../ui/table";
import { Age } from "../../ui/time";
import { gpuUse } from "./worker-cells";

const used = (value: number | null | undefined) =>
  value === null || value === undefined ? (
    <span className="text-faint">–</span>
  ) : (
    <Meter share={value / 100} label={percent(value)} />
  );

const COLUMNS: Column<Worker>[] = [
  { name: "Worker", width: "minmax(6rem, 1fr)", cell: (w) => w.id, by: (w) => w.id },
  {
    name: "Status",
    width: "6.75rem",
    cell: (w) => <Mark state={w.status} />,
    by: (w) => w.status,
  },
  {
    name: "Last heartbeat",
    width: "5.25rem",
    right: true,
    cell: (w) => <Age at={w.last_heartbeat} />,
    by: (w) => -w.last_heartbeat,
  },
  { name: "Task", width: "minmax(5rem, 1fr)", cell: (w) => w.current_task, by: (w) => w.current_task },
  { name: "Rank", width: "2.5rem", right: true, cell: (w) => (w.rank < 0 ? "–" : w.rank), by: (w) => w.rank },
  {
    name: "Epoch / step",
    width: "5.5rem",
    right: true,
    cell: (w) => `${count(w.current_epoch)} / ${count(w.current_step)}`,
    by: (w) => w.current_step,
  },
  { name: "Shards", width: "3rem", right: true, cell: (w) => count(w.assigned_shards), by: (w) => w.assigned_shards },
  {
    name: "GPUs",
    width: "7.25rem",
    cell: (w) => (
      <span className="grid grid-cols-[1rem_minmax(0,1fr)] items-center gap-2">
        <span className="text-right">{w.gpu_count}</span>
        {w.gpu_count > 0 && used(gpuUse(w))}
      </span>
    ),
    by: (w) => gpuUse(w) ?? -1,
  },
  { name: "CPU", width: "5.25rem", cell: (w) => used(w.resources?.cpu_percent), by: (w) => w.resources?.cpu_percent ?? -1 },
  { name: "Memory", width: "4rem", right: true, cell: (w) => bytes(w.resources?.memory_used_bytes), by: (w) => w.resources?.memory_used_bytes ?? -1 },
  { name: "Disk free", width: "4rem", right: true, cell: (w) => bytes(w.resources?.disk_free_bytes), by: (w) => w.resources?.disk_free_bytes ?? -1 },
  {
    name: "Network in / out",
    width: "7.75rem",
    right: true,
    cell: (w) => `${bytes(w.resources?.network_rx_bytes)} / ${bytes(w.resources?.network_tx_bytes)}`,
  },
];

export function WorkerTable({ workers }: { workers: readonly Worker[] }) {
  return (
    <Table
      fill
      label="Workers"
      rows={workers}
      columns={COLUMNS}
      keyOf={(worker) => worker.id}
      href={(worker) => hrefTo(["workers", worker.id])}
    />
  );
}
