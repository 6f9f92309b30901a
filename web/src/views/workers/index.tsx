/** Workers: a heatmap and a table of all workers, and a page for each worker. */
import { useMemo, useState } from "react";
import type { Worker, WorkerStatus } from "../../api/types";
import { count } from "../../lib/format";
import { byName } from "../../lib/text";
import { useCluster } from "../../state/cluster";
import { usePlace, useParam } from "../../state/url";
import { Choice, Field, Segments } from "../../ui/controls";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Page } from "../../ui/page";
import { BY, type By } from "./worker-cells";
import { Heatmap } from "./worker-heatmap";
import { WorkerPage } from "./worker-page";
import { WorkerTable } from "./worker-table";

export default function Workers() {
  const id = usePlace().path[1];
  return id ? <WorkerPage id={id} key={id} /> : <AllWorkers />;
}

const STATUSES: Record<WorkerStatus, string> = {
  active: "active",
  checkpointing: "checkpointing",
  recovering: "recovering",
  idle: "idle",
  failed: "failed",
};
const NO_WORKERS: ReadonlyMap<string, Worker> = new Map();

function AllWorkers() {
  const { cluster, error, loading } = useCluster();
  const [by, setBy] = useParam("by", "state");
  const [status, setStatus] = useParam("status");
  const [task, setTask] = useParam("task");
  const [search, setSearch] = useParam("q");
  const all = useWorkersByName(cluster?.workers ?? NO_WORKERS);
  const tasks = useMemo(() => [...new Set(all.map((worker) => worker.current_task))].filter(Boolean), [all]);
  const shown = useMemo(() => all.filter(matches(status, task, search)), [all, status, task, search]);
  const total = cluster?.totals?.workers ?? all.length;
  const aside = (
    <>
      <Field label="Search workers" type="search" data-search value={search} onChange={(event) => setSearch(event.target.value)} className="w-40" />
      <Choice label="Status" value={status} onChange={setStatus} options={[["", "any status"], ...Object.entries(STATUSES)]} />
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
          {error ? <ErrorMessage error={error} /> : loading ? <Loading /> : (
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

/** The workers ordered by name. The names are sorted again only when workers were added or removed. */
function useWorkersByName(workers: ReadonlyMap<string, Worker>): Worker[] {
  const [known, setKnown] = useState<{ ids: readonly string[]; ordered: readonly string[] }>({ ids: [], ordered: [] });
  const ids = useMemo(() => [...workers.keys()], [workers]);
  const same = known.ids.length === ids.length && ids.every((id, index) => id === known.ids[index]);
  const ordered = useMemo(() => (same ? known.ordered : ids.toSorted(byName)), [same, known, ids]);
  if (!same) setKnown({ ids, ordered });
  return useMemo(() => ordered.map((id) => workers.get(id)!), [ordered, workers]);
}

function matches(status: string, task: string, search: string) {
  const text = search.toLowerCase();
  return (worker: Worker) =>
    (status === "" || worker.status === status) &&
    (task === "" || worker.current_task === task) &&
    (text === "" || `${worker.id} ${worker.hostname} ${worker.ip}`.toLowerCase().includes(text));
}
