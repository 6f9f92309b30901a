/** Tasks: the list, a form to submit one, and a page for each. */
import { useMemo } from "react";
import type { Task } from "../../api/types";
import { count, moment } from "../../lib/format";
import { useCluster, useNow } from "../../state/cluster";
import { hrefTo, useParam, usePlace } from "../../state/url";
import { Choice } from "../../ui/controls";
import { Empty, Fault, Loading } from "../../ui/empty";
import { Mark } from "../../ui/marks";
import { Page } from "../../ui/page";
import { Table, type Column } from "../../ui/table";
import { elapsed, progressOf, workersOf } from "./cells";
import { SubmitPage } from "./submit";
import { TaskPage } from "./page";

export const NEW = "new";

export default function Tasks() {
  const [, id] = usePlace().path;
  if (id === NEW) return <SubmitPage />;
  return id ? <TaskPage id={id} key={id} /> : <TaskTable />;
}

const STATUSES = ["", "queued", "starting", "running", "stopping", "completed", "failed", "stopped"];

function columns(now: number): Column<Task>[] {
  return [
    { name: "Task", width: "minmax(8rem, 1.2fr)", cell: (task) => task.id, by: (task) => task.id },
    { name: "Status", width: "7rem", cell: (task) => <Mark state={task.status} />, by: (task) => task.status },
    { name: "Progress", width: "minmax(8rem, 1fr)", cell: progressOf, by: (task) => task.progress ?? -1 },
    { name: "Steps", width: "5rem", right: true, cell: (task) => count(task.committed_steps), by: (task) => task.committed_steps },
    { name: "Workers", width: "5rem", right: true, cell: workersOf, by: (task) => task.worker_count },
    { name: "Generation", width: "5.5rem", right: true, cell: (task) => count(task.generation), by: (task) => task.generation },
    { name: "Dataset", width: "minmax(5rem, 0.8fr)", cell: (task) => task.datasets.join(", ") || <span className="text-faint">–</span>, by: (task) => task.datasets.join() },
    { name: "Submitted", width: "8.5rem", cell: (task) => <time>{moment(task.submitted_at)}</time>, by: (task) => task.submitted_at },
    { name: "Time", width: "6rem", right: true, cell: (task) => elapsed(task, now) },
    { name: "Status detail", width: "minmax(8rem, 2fr)", cell: (task) => <span className="text-dim" title={task.reason}>{task.reason}</span> },
  ];
}

function TaskTable() {
  const { cluster, cursor, fault, loading } = useCluster();
  const now = useNow();
  const [status, setStatus] = useParam("status");
  const rows = useMemo(
    () => [...(cluster?.tasks.values() ?? [])].filter((task) => status === "" || task.status === status),
    [cluster?.tasks, status],
  );
  const total = cluster?.totals?.tasks ?? rows.length;
  const aside = (
    <>
      <Choice label="Status" value={status} onChange={setStatus} options={STATUSES.map((each) => [each, each || "any status"] as const)} />
      {cursor === null && <a href={hrefTo(["tasks", NEW])} className="control inline-flex items-center border-accent! font-medium text-accent!">Submit a task</a>}
    </>
  );
  return (
    <Page title={<>Tasks <span className="font-normal text-faint">{count(rows.length)}{rows.length < total && ` of ${count(total)}`}</span></>} aside={aside}>
      {rows.length === 0 ? (
        <div className="px-6">
          {fault ? <Fault error={fault} /> : loading ? <Loading /> : (
            <Empty title={status ? `No task is ${status}` : "No task has been submitted"} text="Submit one here, or from a terminal." command="strata submit train.py --workers 4" />
          )}
        </div>
      ) : (
        <Table fill label="Tasks" rows={rows} columns={columns(now)} keyOf={(task) => task.id} href={(task) => hrefTo(["tasks", task.id])} sort={{ column: "Submitted", down: true }} />
      )}
    </Page>
  );
}
