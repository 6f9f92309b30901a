/** One dataset: its shards and their owners, the last reassignments, the samples in progress. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { curl } from "../../api/client";
import type { Timeline } from "../../api/timeline";
import type { Dataset, Shard } from "../../api/types";
import { count, moment, plural } from "../../lib/format";
import { useCluster, useTimeline } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Fact } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Page, Scroll, Section } from "../../ui/page";
import { ShardMap } from "./shard-map";
import { Owners } from "./owners";
import { Preview } from "./preview";
import { Reassignments } from "./reassignments";
import { shardsFrom, ShardTable } from "./shard-table";

const REFRESH_MS = 3000;
const PAGE = 1000;
const MAP_PAGES = 4;

/** The shards of the map: the first few pages, now or at a past moment. */
async function shardsOfMap(timeline: Timeline, id: string, atMs: number | null, signal: AbortSignal) {
  const items: Shard[] = [];
  let total = 0;
  for (let page = 0; page < MAP_PAGES; page += 1) {
    const found = await shardsFrom(timeline, id, items.length, PAGE, atMs, signal);
    items.push(...found.items);
    total = found.total;
    if (!found.next) break;
  }
  return { items, total };
}

export function DatasetPage({ id }: { id: string }) {
  const { cluster, cursor } = useCluster();
  const timeline = useTimeline();
  const data = cluster?.datasets.get(id);
  const shards = useQuery({
    queryKey: ["shards", id, cursor],
    queryFn: ({ signal }) => shardsOfMap(timeline, id, cursor, signal),
    refetchInterval: cursor === null ? REFRESH_MS : false,
    placeholderData: keepPreviousData,
    retry: false,
  });
  const unknown = cursor !== null && cluster !== null && data === undefined;
  const title = (
    <>
      <a href={hrefTo(["data"])} className="font-normal text-dim hover:underline">Data</a>
      <span aria-hidden className="mx-2 font-normal text-faint">/</span>
      {data?.name ?? id}
    </>
  );
  return (
    <Page title={title} aside={<CopyButton label="Copy as curl" text={() => curl(`/datasets/${encodeURIComponent(id)}/shards`)} />}>
      <Scroll label={`Dataset ${id}`}>
        {data && <About data={data} shards={shards.data?.items ?? []} />}
        {unknown ? <Empty title={`There was no dataset ${id} at this moment`} command="strata datasets" /> : shards.error ? <ErrorMessage error={shards.error} /> : shards.data ? <Shards id={id} items={shards.data.items} total={shards.data.total} /> : <Loading />}
      </Scroll>
    </Page>
  );
}

function About({ data, shards }: { data: Dataset; shards: readonly Shard[] }) {
  const [first] = shards;
  return (
    <dl className="grid grid-cols-[repeat(auto-fill,minmax(9rem,1fr))] gap-x-6 gap-y-4">
      <Fact name="Samples">{count(data.total_samples)}</Fact>
      <Fact name="Shards registered" word="shard">{count(data.shard_count)} × {count(data.shard_size)}</Fact>
      <Fact name="Format">{data.format || "–"}</Fact>
      <Fact name="Order">{data.shuffle ? `shuffled, seed ${data.seed}` : "not shuffled"}</Fact>
      <Fact name="Registered">{moment(data.registered_at)}</Fact>
      <Fact name="Epoch">{first?.task_id ? count(first.epoch) : "–"}</Fact>
      <Fact name="Task">{first?.task_id ? <a className="hover:underline" href={hrefTo(["tasks", first.task_id])}>{first.task_id}</a> : "none"}</Fact>
      <Fact name="Path">{data.path || "–"}</Fact>
    </dl>
  );
}

function Shards({ id, items, total }: { id: string; items: readonly Shard[]; total: number }) {
  const [owner, setOwner] = useState("");
  const { cursor } = useCluster();
  const shown = items.length < total ? `the first ${count(items.length)} of ${plural(total, "shard")}` : `${plural(total, "shard")} in this epoch`;
  const task = useMemo(() => items.find((shard) => shard.task_id)?.task_id ?? "", [items]);
  if (items.length === 0) return <Empty title="This dataset has no shards yet" text="It is divided into shards when a task trains on it." command="strata datasets" />;
  return (
    <>
      <Section title="Shard owners" aside={shown} className="mt-8">
        <ShardMap shards={items} owner={owner} />
      </Section>
      <div className="mt-8 grid grid-cols-2 gap-x-10 gap-y-8 max-xl:grid-cols-1">
        <Owners shards={items} task={task} owner={owner} onOwner={setOwner} />
        <Reassignments dataset={id} />
      </div>
      <Preview id={id} shards={items} />
      <ShardTable id={id} total={total} cursor={cursor} />
    </>
  );
}
