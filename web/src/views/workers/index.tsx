/** Workers: the fleet as a heatmap with a table twin, or one worker's page. */
import { useMemo } from "react";
import type { Worker } from "../../api/types";
import { count } from "../../lib/format";
import { byName } from "../../lib/text";
import { useCluster } from "../../state/cluster";
import { usePlace, useParam } from "../../state/url";
import { Choice, Field, Segments } from "../../ui/controls";
import { Empty, Fault, Loading } from "../../ui/empty";
import { Page } from "../../ui/page";
import { BY, type By } from "./cells";
import { Heatmap } from "./heatmap";
import { WorkerPage } from "./page";
import { WorkerTable } from "./table";

export default function Workers() {
  const id = usePlace().path[1];
  return id ? <WorkerPage id={id} key={id} /> : <Fleet />;
}

const STATUSES = ["", "active", "checkpointing", "recovering", "idle", "failed"] as const;

function Fleet() {
  const { cluster, fault, loading } = useCluster();
  const [by, setBy] = useParam("by", "state");
  const [status, setStatus] = useParam("status");
  const [task, setTask] = useParam("task");
  const [search, setSearch] = useParam("q");
  const all = useMemo(
    () => [...(cluster?.workers.values() ?? [])].toSorted((a, b) => byName(a.id, b.id)),
    [cluster?.workers],
  );
  const tasks = useMemo(() => [...new Set(all.map((worker) => worker.current_task))].filter(Boolean), [all]);
  const shown = useMemo(() => all.filter(wanted(status, task, search)), [all, status, task, search]);
  const total = cluster?.totals?.workers ?? all.length;
  const aside = (
    <>
      <Field label="Search workers" type="search" data-search value={search} onChange={(event) => setSearch(event.target.value)} className="w-40" />
      <Choice label="Status" value={status} onChange={setStatus} options={STATUSES.map((each) => [each, each || "any status"] as const)} />
      <Choice label="Task" value={task} onChange={setTask} options={[["", "any task"], ...tasks.map((each) => [each, each] as const)]} />
      <Segments label="Colour by" value={by} onChange={setBy} options={Object.entries(BY).map(([name, text]) => [name, text] as const)} />
    </>
  );
  const title = (
    <>
      Workers <span className="font-normal text-faint">{count(shown.length)}{shown.length < total && ` of ${count(total)}`}</span>
    </>
  );
  return (
    <Page title={title} aside={aside}>
      {all.length === 0 ? (
        <div className="px-6">
          {fault ? <Fault error={fault} /> : loading ? <Loading /> : (
            <Empty title="No worker has joined" text="Workers appear when a training script joins this coordinator." command="strata run examples/counter.py --workers 3" />
          )}
        </div>
      ) : (
        <>
          <Heatmap workers={shown} by={by as By} />
          <WorkerTable workers={shown} />
        </>
      )}
    </Page>
  );
}

function wanted(status: string, task: string, search: string) {
  const text = search.toLowerCase();
  return (worker: Worker) =>
    (status === "" || worker.status === status) &&
    (task === "" || worker.current_task === task) &&
    (text === "" || `${worker.id} ${worker.hostname} ${worker.ip}`.toLowerCase().includes(text));
}
