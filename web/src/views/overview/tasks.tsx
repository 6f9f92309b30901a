/** Tasks with their progress, the running ones first. */
import { useMemo } from "react";
import type { Task } from "../../api/types";
import { count } from "../../lib/format";
import { useNow } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Mark } from "../../ui/marks";
import { Table, type Column } from "../../ui/table";
import { elapsed, progressOf, workersOf } from "../tasks/cells";

const SHOWN = 12;
const ENDED = new Set(["completed", "failed", "stopped"]);

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
