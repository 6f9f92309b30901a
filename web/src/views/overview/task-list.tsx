/** Tasks with their progress, the running ones first. */
import { useMemo } from "react";
import type { Task } from "../../api/types";
import { count } from "../../lib/format";
import { GLOSSARY } from "../../lib/glossary";
import { hrefTo } from "../../state/url";
import { Mark } from "../../ui/state-mark";
import { Table, type Column } from "../../ui/table";
import { Elapsed, hasEnded, progressOf, statusOf, workersOf } from "../tasks/task-cells";

const SHOWN = 12;

const COLUMNS: Column<Task>[] = [
  { name: "Task", width: "minmax(8rem, 1.4fr)", cell: (task) => task.id },
  { name: "Status", width: "8.5rem", cell: (task) => <Mark state={task.status} label={statusOf(task)} /> },
  { name: "Progress", width: "minmax(7rem, 1fr)", cell: progressOf },
  { name: "Steps", width: "5rem", right: true, help: GLOSSARY["committed steps"], cell: (task) => count(task.committed_steps) },
  { name: "Workers", width: "5rem", right: true, cell: workersOf },
  { name: "Generation", width: "5.5rem", right: true, help: GLOSSARY.generation, cell: (task) => count(task.generation) },
  { name: "Time", width: "6rem", right: true, cell: (task) => <Elapsed task={task} /> },
];

export function TaskList({ tasks }: { tasks: ReadonlyMap<string, Task> }) {
  const rows = useMemo(
    () =>
      [...tasks.values()]
        .toSorted(
          (a, b) =>
            Number(hasEnded(a)) - Number(hasEnded(b)) ||
            b.submitted_at - a.submitted_at,
        )
        .slice(0, SHOWN),
    [tasks],
  );
  return (
    <Table
      label="Tasks"
      rows={rows}
      columns={COLUMNS}
      keyOf={(task) => task.id}
      href={(task) => hrefTo(["tasks", task.id])}
    />
  );
}
