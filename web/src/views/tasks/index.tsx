/** Tasks: the list, a form to submit one, and a page for each task. */
import { useMemo } from "react";
import type { TaskStatus } from "../../api/types";
import { count, moment } from "../../lib/format";
import { GLOSSARY } from "../../lib/glossary";
import { useCluster } from "../../state/cluster";
import { hrefTo, useParam, usePlace } from "../../state/url";
import { Choice } from "../../ui/controls";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Mark } from "../../ui/state-mark";
import { Page } from "../../ui/page";
import { Table, type Column } from "../../ui/table";
import { Branch, forest, type TaskInTree } from "./lineage";
import { detailOf, Elapsed, progressOf, statusOf, workersOf } from "./task-cells";
import { SubmitPage } from "./submit";
import { TaskPage } from "./task-page";

export const NEW = "new";

export default function Tasks() {
  const [, id] = usePlace().path;
  if (id === NEW) return <SubmitPage />;
  return id ? <TaskPage id={id} key={id} /> : <TaskTable />;
}

/** Every status, in the order of a task's life; the type makes the compiler name a missing one. */
const STATUSES: Record<TaskStatus, string> = {
  queued: "queued",
  starting: "starting",
  running: "running",
  recovering: "recovering",
  stopping: "stopping",
  completed: "completed",
  failed: "failed",
  stopped: "stopped",
};

const COLUMNS: Column<TaskInTree>[] = [
  { name: "Task", width: "minmax(13rem, 2fr)", cell: (task) => <Branch task={task} />, by: (task) => task.id },
  { name: "Status", width: "8rem", cell: (task) => <Mark state={task.status} label={statusOf(task)} />, by: (task) => task.status },
  { name: "Progress", width: "minmax(7rem, 1fr)", cell: progressOf, by: (task) => task.progress ?? -1 },
  { name: "Steps", width: "4.5rem", right: true, help: GLOSSARY["committed steps"], cell: (task) => count(task.committed_steps), by: (task) => task.committed_steps },
  { name: "Workers", width: "5rem", right: true, cell: workersOf, by: (task) => task.worker_count },
  { name: "Generation", width: "5.5rem", right: true, help: GLOSSARY.generation, cell: (task) => count(task.generation), by: (task) => task.generation },
  { name: "Dataset", width: "minmax(5rem, 0.8fr)", cell: (task) => task.datasets.join(", ") || <span className="text-faint">–</span>, by: (task) => task.datasets.join() },
  { name: "Submitted", width: "7.5rem", cell: (task) => <time>{moment(task.submitted_at)}</time>, by: (task) => task.submitted_at },
  { name: "Time", width: "5.5rem", right: true, cell: (task) => <Elapsed task={task} /> },
  { name: "Status detail", width: "minmax(8rem, 2fr)", cell: (task) => <span className="text-dim" title={detailOf(task)}>{detailOf(task)}</span> },
];

function TaskTable() {
  const { cluster, cursor, error, loading } = useCluster();
  const [status, setStatus] = useParam("status");
  const rows: TaskInTree[] = useMemo(
    () => [...(cluster?.tasks.values() ?? [])].filter((task) => status === "" || task.status === status),
    [cluster?.tasks, status],
  );
  const total = cluster?.totals?.tasks ?? rows.length;
  const aside = (
    <>
      <Choice label="Status" value={status} onChange={setStatus} options={[["", "any status"], ...Object.entries(STATUSES)]} />
      {cursor === null && <a href={hrefTo(["tasks", NEW])} className="control inline-flex items-center border-accent! font-medium text-accent!">Submit a task</a>}
    </>
  );
  return (
    <Page title={<>Tasks <span className="font-normal text-faint">{count(rows.length)}{rows.length < total && ` of ${count(total)}`}</span></>} aside={aside}>
      {rows.length === 0 ? (
        <div className="px-6">
          {error ? <ErrorMessage error={error} /> : loading ? <Loading /> : (
            <Empty title={status ? `No task is ${status}` : "No task has been submitted"} text="Submit one here, or from a terminal." command="strata submit train.py --workers 4" />
          )}
        </div>
      ) : (
        <Table fill label="Tasks" rows={rows} columns={COLUMNS} keyOf={(task) => task.id} href={(task) => hrefTo(["tasks", task.id])} sort={{ column: "Submitted", down: true }} arrange={forest} />
      )}
    </Page>
  );
}
