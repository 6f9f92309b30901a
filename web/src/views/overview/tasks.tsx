/** Tasks with their progress, the running ones first. */
import { useMemo } from "react";
import type { Task } from "../../api/types";
import { count, duration } from "../../lib/format";
import { useNow } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Mark, Meter } from "../../ui/marks";
import { Table, type Column } from "../../ui/table";

const SHOWN = 12;
const ENDED = new Set(["completed", "failed", "stopped"]);

export function progressOf(task: Task) {
  const { progress, status } = task;
  const label = progress === null ? "–" : `${Math.floor(progress)} %`;
  return <Meter share={progress === null ? null : progress / 100} label={label} state={status} />;
}

/** How many processes it has, of those it asked for. */
export function workersOf(task: Task): string {
  return `${count(task.worker_ids_total)} / ${count(task.worker_count + task.spares)}`;
}

export function elapsed(task: Task, now: number): string {
  if (task.started_at === null) return "–";
  return duration((task.completed_at ?? Math.max(now, task.started_at)) - task.started_at);
}

export function TaskList({ tasks }: { tasks: ReadonlyMap<string, Task> }) {
  const now = useNow();
  const rows = useMemo(
    () =>
      [...tasks.values()]
        .toSorted(
          (a, b) =>
            Number(ENDED.has(a.status)) - Number(ENDED.has(b.status)) ||
            b.submitted_at - a.submitted_at,
        )
        .slice(0, SHOWN),
    [tasks],
  );
  const columns: Column<Task>[] = [
    { name: "Task", width: "minmax(8rem, 1.4fr)", cell: (task) => task.id },
    { name: "Status", width: "6.5rem", cell: (task) => <Mark state={task.status} /> },
    { name: "Progress", width: "minmax(7rem, 1fr)", cell: progressOf },
    { name: "Steps", width: "5rem", right: true, cell: (task) => count(task.committed_steps) },
    {
      name: "Workers",
      width: "5rem",
      right: true,
      cell: workersOf,
    },
    { name: "Generation", width: "5.5rem", right: true, cell: (task) => count(task.generation) },
    { name: "Time", width: "6rem", right: true, cell: (task) => elapsed(task, now) },
  ];
  return (
    <Table
      label="Tasks"
      rows={rows}
      columns={columns}
      keyOf={(task) => task.id}
      href={(task) => hrefTo(["tasks", task.id])}
    />
  );
}
