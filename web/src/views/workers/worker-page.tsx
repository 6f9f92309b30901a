/** The page of a worker: state, resource use, lane, history and log. */
import { useQuery } from "@tanstack/react-query";
import { api, ApiError, bodyOf, curl } from "../../api/client";
import type { Worker } from "../../api/types";
import { bytes, count, moment, percent } from "../../lib/format";
import { useCluster, useCursor } from "../../state/cluster";
import { useLines } from "../../state/latest-lines";
import { hrefTo } from "../../state/url";
import { Fact } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Mark } from "../../ui/state-mark";
import { Page, Scroll, Section } from "../../ui/page";
import { Age } from "../../ui/time";
import { LogLines } from "../logs/log-lines";
import { HistoryList } from "../timeline/history";
import { WorkerLane } from "../timeline/worker-lane";
import { gpuUse } from "./worker-cells";
import { Usage } from "./usage";

export function WorkerPage({ id }: { id: string }) {
  const { cluster, cursor } = useCluster();
  const listed = cluster?.workers.get(id);
  const query = useQuery({
    queryKey: ["worker", id],
    queryFn: ({ signal }) => bodyOf(api.GET("/api/workers/{worker_id}", { params: { path: { worker_id: id } }, signal })),
    enabled: cluster !== null && !listed && cursor === null,
  });
  const worker = listed ?? (cursor === null ? query.data : undefined);
  const path = `/workers/${encodeURIComponent(id)}`;
  return (
    <Page
      title={
        <>
          <a href={hrefTo(["workers"])} className="font-normal text-dim hover:underline">Workers</a>
          <span aria-hidden className="mx-2 font-normal text-faint">/</span>
          {id}
        </>
      }
      aside={<CopyButton label="Copy as curl" text={() => curl(path)} />}
    >
      <Scroll label={`Worker ${id}`}>
        {worker ? <Body worker={worker} /> : <Missing id={id} error={query.error} loading={query.isPending && cursor === null} />}
      </Scroll>
    </Page>
  );
}

function Missing({ id, error, loading }: { id: string; error: Error | null; loading: boolean }) {
  const cursor = useCursor();
  if (error && !(error instanceof ApiError && error.status === 404)) return <ErrorMessage error={error} />;
  if (loading) return <Loading />;
  return <Empty title={cursor === null ? `There is no worker ${id}` : `There was no worker ${id} at this moment`} text="It has left, or it never registered." command="strata workers" />;
}

function Body({ worker }: { worker: Worker }) {
  const { resources } = worker;
  return (
    <>
      <dl className="grid grid-cols-[repeat(auto-fill,minmax(9rem,1fr))] gap-x-6 gap-y-4">
        <Fact name="Status"><Mark state={worker.status} label={worker.state.replaceAll("_", " ")} /></Fact>
        <Fact name="Task"><a className="hover:underline" href={hrefTo(["tasks", worker.current_task])}>{worker.current_task}</a></Fact>
        <Fact name="Rank">{worker.rank < 0 ? "none" : worker.rank}</Fact>
        <Fact name="Step">{count(worker.current_step)}</Fact>
        <Fact name="Epoch">{count(worker.current_epoch)}</Fact>
        <Fact name="Shards" word="shard">{count(worker.assigned_shards)}</Fact>
        <Fact name="Last heartbeat"><Age at={worker.last_heartbeat} ago /></Fact>
        <Fact name="Host">{worker.hostname || "–"}</Fact>
        <Fact name="Address">{worker.port ? `${worker.ip}:${worker.port}` : worker.ip || "–"}</Fact>
        <Fact name="Incarnation" word="incarnation">{worker.incarnation}</Fact>
        <Fact name="Registered">{moment(worker.registered_at)}</Fact>
        <Fact name="GPUs">{worker.gpu_count === 0 && gpuUse(worker) === null ? "none" : `${worker.gpu_count} · ${percent(gpuUse(worker))}`}</Fact>
        <Fact name="Memory">{bytes(resources?.memory_used_bytes)}</Fact>
        <Fact name="Disk read / written">{bytes(resources?.disk_read_bytes)} / {bytes(resources?.disk_write_bytes)}</Fact>
        <Fact name="Network in / out">{bytes(resources?.network_rx_bytes)} / {bytes(resources?.network_tx_bytes)}</Fact>
      </dl>
      {worker.reason && <p className="mt-4 text-dim">{worker.reason}</p>}
      <Usage worker={worker} />
      <WorkerLane node={worker.id} />
      <div className="mt-8 grid grid-cols-2 gap-x-10 gap-y-8 max-xl:grid-cols-1">
        <History id={worker.id} />
        <Log id={worker.id} />
      </div>
    </>
  );
}

function History({ id }: { id: string }) {
  return (
    <Section title="History" aside={<a className="hover:underline" href={hrefTo(["timeline"], { node: id })}>on the timeline</a>}>
      <HistoryList subject={id} />
    </Section>
  );
}

function Log({ id }: { id: string }) {
  const { entries, error } = useLines({ worker_id: id });
  return (
    <Section title="Log" aside={<a className="hover:underline" href={hrefTo(["logs"], { worker: id })}>all lines</a>}>
      {error ? <ErrorMessage error={error} /> : <LogLines entries={entries} />}
    </Section>
  );
}
