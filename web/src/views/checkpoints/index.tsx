/** Checkpoints: from the first part to the manifest, who wrote what, and who restored from it. */
import { useMutation } from "@tanstack/react-query";
import { useMemo } from "react";
import { curl, post } from "../../api/client";
import { keyOf } from "../../api/patches";
import type { Checkpoint, Task } from "../../api/types";
import { age, bytes, count, moment } from "../../lib/format";
import { useCluster, useNow } from "../../state/cluster";
import { format, here, useParam } from "../../state/url";
import { Button, Choice } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Empty, Fault, Loading } from "../../ui/empty";
import { Mark, Meter } from "../../ui/marks";
import { Page } from "../../ui/page";
import { Table, type Column } from "../../ui/table";
import { CheckpointDrawer } from "./drawer";

const STATUSES = [["", "any status"], ["in_progress", "in progress"], ["completed", "completed"], ["failed", "failed"]] as const;

export default function Checkpoints() {
  const { cluster, cursor, fault, loading } = useCluster();
  const now = useNow();
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
      {cursor === null && <SaveNow tasks={tasks} />}
      <CopyButton label="Copy as curl" text={() => curl("/checkpoints", { status, task_id: task })} />
    </>
  );
  return (
    <Page title={<>Checkpoints <span className="font-normal text-faint">{count(rows.length)}{rows.length < total && ` of ${count(total)}`}</span></>} aside={aside}>
      {rows.length === 0 ? (
        <div className="px-6">
          {fault ? <Fault error={fault} /> : loading ? <Loading /> : (
            <Empty title="Nothing has been saved" text="A training script saves with run.save(state); it appears here with its first part." command="strata checkpoints" />
          )}
        </div>
      ) : (
        <div className="relative flex min-h-0 flex-1">
          <Table
            fill
            label="Checkpoints"
            rows={rows}
            columns={columns(now)}
            keyOf={(saved) => keyOf("checkpoints", saved)}
            href={(saved) => format({ path: ["checkpoints"], params: { ...here().params, checkpoint: keyOf("checkpoints", saved) } })}
            sort={{ column: "Began", down: true }}
          />
          {chosen && <CheckpointDrawer key={chosen} chosen={chosen} listed={cluster?.checkpoints.get(chosen)} close={() => setChosen("")} />}
        </div>
      )}
    </Page>
  );
}

function columns(now: number): Column<Checkpoint>[] {
  return [
    { name: "Checkpoint", width: "minmax(8rem, 1.2fr)", cell: (saved) => saved.id, by: (saved) => saved.id },
    { name: "Status", width: "7.5rem", cell: (saved) => <Mark state={saved.status} />, by: (saved) => saved.status },
    { name: "Parts", width: "7rem", cell: (saved) => <Meter share={saved.parts / Math.max(saved.parts_expected, 1)} label={`${saved.parts}/${saved.parts_expected}`} state={saved.status} /> },
    { name: "Size", width: "7rem", right: true, cell: (saved) => (saved.status === "in_progress" && saved.size_total > 0 ? `${bytes(saved.size_written)} of ${bytes(saved.size_total)}` : bytes(saved.size)), by: (saved) => saved.size },
    { name: "Step", width: "5rem", right: true, cell: (saved) => count(saved.step), by: (saved) => saved.step },
    { name: "Epoch", width: "3.5rem", right: true, cell: (saved) => count(saved.epoch), by: (saved) => saved.epoch },
    { name: "Task", width: "minmax(6rem, 1fr)", cell: (saved) => saved.task_id, by: (saved) => saved.task_id },
    { name: "Begun by", width: "minmax(6rem, 1fr)", cell: (saved) => saved.worker_id, by: (saved) => saved.worker_id },
    { name: "Began", width: "5rem", right: true, cell: (saved) => <time title={moment(saved.created_at)}>{age(saved.created_at, now)}</time>, by: (saved) => saved.created_at },
    { name: "Where, or why not", width: "minmax(10rem, 2fr)", cell: (saved) => <span className="text-dim" title={saved.reason || saved.path}>{saved.status === "failed" ? saved.reason : saved.path}</span> },
  ];
}

function SaveNow({ tasks }: { tasks: readonly Task[] }) {
  const running = tasks.filter((task) => task.status === "running");
  const save = useMutation({ mutationFn: (id: string) => post(`/tasks/${encodeURIComponent(id)}/checkpoint`) });
  const [newest] = running.toSorted((a, b) => b.submitted_at - a.submitted_at);
  if (!newest) return null;
  const label = save.isSuccess ? "asked for" : save.error ? save.error.message : `Save ${newest.id} now`;
  return (
    <Button onClick={() => save.mutate(newest.id)} disabled={save.isPending}>
      {label}
    </Button>
  );
}
