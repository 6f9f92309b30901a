/** Checkpoints: status, size and path; a drawer with the details of each. */
import { useMutation } from "@tanstack/react-query";
import { useMemo } from "react";
import { api, bodyOf, curl } from "../../api/client";
import { keyOf } from "../../api/patches";
import type { Checkpoint, Task } from "../../api/types";
import { bytes, count } from "../../lib/format";
import { useCluster } from "../../state/cluster";
import { format, here, useParam } from "../../state/url";
import { ActionError } from "../../ui/confirm";
import { Button, Choice } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Mark, Meter } from "../../ui/state-mark";
import { Page } from "../../ui/page";
import { Table, type Column } from "../../ui/table";
import { Age } from "../../ui/time";
import { CheckpointDrawer } from "./checkpoint-drawer";
import { keptBecause } from "./kept";
import { newBytes, storedSoFar } from "./sizes";

const STATUSES = [["", "any status"], ["in_progress", "in progress"], ["completed", "completed"], ["failed", "failed"]] as const;

export default function Checkpoints() {
  const { cluster, cursor, error, loading } = useCluster();
  const [status, setStatus] = useParam("status");
  const [task, setTask] = useParam("task");
  const [chosen, setChosen] = useParam("checkpoint");
  const rows = useMemo(
    () =>
      [...(cluster?.checkpoints.values() ?? [])].filter(
        (saved) => (status === "" || saved.status === status) && (task === "" || saved.task_id === task),
      ),
    [cluster?.checkpoints, status, task],
  );
  const tasks = [...(cluster?.tasks.values() ?? [])];
  const total = cluster?.totals?.checkpoints ?? rows.length;
  const aside = (
    <>
      <Choice label="Status" value={status} onChange={setStatus} options={STATUSES} />
      <Choice label="Task" value={task} onChange={setTask} options={[["", "any task"], ...tasks.map((each) => [each.id, each.id] as const)]} />
      {cursor === null && <SaveNow tasks={tasks} chosen={task} />}
      <CopyButton label="Copy as curl" text={() => curl("/checkpoints", { status, task_id: task })} />
    </>
  );
  return (
    <Page title={<>Checkpoints <span className="font-normal text-faint">{count(rows.length)}{rows.length < total && ` of ${count(total)}`}</span></>} aside={aside}>
      {rows.length === 0 ? (
        <div className="px-6">
          {error ? <ErrorMessage error={error} /> : loading ? <Loading /> : (
            <Empty title={status || task ? "No checkpoint matches" : "No checkpoint yet"} text="A training script saves one with run.save(state). It is listed here as soon as the save starts." command="strata checkpoints" />
          )}
        </div>
      ) : (
        <div className="relative flex min-h-0 flex-1">
          <Table
            fill
            label="Checkpoints"
            rows={rows}
            columns={COLUMNS}
            keyOf={(saved) => keyOf("checkpoints", saved)}
            href={(saved) => format({ path: ["checkpoints"], params: { ...here().params, checkpoint: keyOf("checkpoints", saved) } })}
            sort={{ column: "Age", down: false }}
          />
          {chosen && <CheckpointDrawer key={chosen} chosen={chosen} listed={cluster?.checkpoints.get(chosen)} close={() => setChosen("")} />}
        </div>
      )}
    </Page>
  );
}

const COLUMNS: Column<Checkpoint>[] = [
  { name: "Checkpoint", width: "minmax(8rem, 1.2fr)", cell: (saved) => saved.id, by: (saved) => saved.id },
  { name: "Status", width: "6.5rem", cell: (saved) => <Mark state={saved.status} />, by: (saved) => saved.status },
  { name: "Parts stored", width: "5.5rem", cell: (saved) => <Meter share={saved.parts / Math.max(saved.parts_expected, 1)} label={`${saved.parts}/${saved.parts_expected}`} state={saved.status} /> },
  { name: "Size", width: "5rem", right: true, cell: (saved) => (saved.status === "completed" ? bytes(saved.size) : "–"), by: (saved) => saved.size },
  { name: "Stored", width: "8rem", right: true, help: "In progress: bytes in storage so far. Completed: bytes that this checkpoint added to storage.", cell: (saved) => (saved.status === "in_progress" ? storedSoFar(saved) : saved.status === "completed" ? newBytes(saved) : "–") },
  { name: "Step", width: "4rem", right: true, cell: (saved) => count(saved.step), by: (saved) => saved.step },
  { name: "Epoch", width: "3.5rem", right: true, cell: (saved) => count(saved.epoch), by: (saved) => saved.epoch },
  { name: "Kept because", width: "minmax(6.5rem, 1.2fr)", cell: (saved) => <span title={keptBecause(saved)}>{keptBecause(saved)}</span>, by: keptBecause },
  { name: "Task", width: "minmax(5rem, 1fr)", cell: (saved) => saved.task_id, by: (saved) => saved.task_id },
  { name: "Started by", width: "minmax(5.5rem, 1fr)", cell: (saved) => saved.worker_id, by: (saved) => saved.worker_id },
  { name: "Age", width: "4.5rem", right: true, cell: (saved) => <Age at={saved.created_at} />, by: (saved) => -saved.created_at },
  { name: "Path or failure", width: "minmax(6rem, 2fr)", cell: (saved) => <span className="text-dim" title={saved.reason || saved.path}>{saved.status === "failed" ? saved.reason : saved.path}</span> },
];

/** Requests a checkpoint of the chosen task, or of the newest running one. */
function SaveNow({ tasks, chosen }: { tasks: readonly Task[]; chosen: string }) {
  const running = tasks.filter((task) => task.status === "running" && (chosen === "" || task.id === chosen));
  const save = useMutation({ mutationFn: (id: string) => bodyOf(api.POST("/api/tasks/{task_id}/checkpoint", { params: { path: { task_id: id } } })) });
  const [newest] = running.toSorted((a, b) => b.submitted_at - a.submitted_at);
  if (!newest) return null;
  return (
    <>
      <ActionError error={save.error} />
      {save.isSuccess && <span role="status" className="text-dim">requested</span>}
      <Button onClick={() => save.mutate(newest.id)} disabled={save.isPending}>Save {newest.id} now</Button>
    </>
  );
}
