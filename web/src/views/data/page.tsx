/** One dataset: its shards and their owners, the last reassignments, the samples in progress. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { curl } from "../../api/client";
import type { Dataset, Shard } from "../../api/types";
import { count, moment, plural } from "../../lib/format";
import { useCluster } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Fact } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Empty, Fault, Loading } from "../../ui/empty";
import { Page, Scroll, Section } from "../../ui/page";
import { Holders } from "./holders";
import { ShardMap } from "./map";
import { Moves } from "./moves";
import { Preview } from "./preview";
import { shardsFrom, ShardTable } from "./shards";

const REFRESH_MS = 3000;
const PAGE = 1000;
const PAGES = 4;

/** The first shards of now or of a moment, a few pages of them: a map of more would not be seen. */
async function mapped(id: string, then: number | null, signal: AbortSignal) {
  const items: Shard[] = [];
  let total = 0;
  for (let page = 0; page < PAGES; page += 1) {
    const found = await shardsFrom(id, items.length, PAGE, then, signal);
    items.push(...found.items);
    total = found.total;
    if (!found.next) break;
  }
  return { items, total };
}

export function DatasetPage({ id }: { id: string }) {
  const { cluster, cursor } = useCluster();
  const data = cluster?.datasets.get(id);
  const shards = useQuery({
    queryKey: ["shards", id, cursor],
    queryFn: ({ signal }) => mapped(id, cursor, signal),
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
        {unknown ? <Empty title={`There was no dataset ${id} at this moment`} command="strata datasets" /> : shards.error ? <Fault error={shards.error} /> : shards.data ? <Shards id={id} items={shards.data.items} total={shards.data.total} /> : <Loading />}
      </Scroll>
    </Page>
  );
}

function About({ data, shards }: { data: Dataset; shards: readonly Shard[] }) {
  const [first] = shards;
  return (
    <dl className="grid grid-cols-[repeat(auto-fill,minmax(9rem,1fr))] gap-x-6 gap-y-4">
      <Fact name="Samples">{count(data.total_samples)}</Fact>
      <Fact name="Shards registered">{count(data.shard_count)} × {count(data.shard_size)}</Fact>
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
  const [holder, setHolder] = useState("");
  const { cursor } = useCluster();
  const shown = items.length < total ? `the first ${count(items.length)} of ${plural(total, "shard")}` : `${plural(total, "shard")} in this epoch`;
  const task = useMemo(() => items.find((shard) => shard.task_id)?.task_id ?? "", [items]);
  if (items.length === 0) return <Empty title="This dataset has no shards yet" text="It is divided into shards when a task trains on it." command="strata datasets" />;
  return (
    <>
      <Section title="Shard owners" aside={shown} className="mt-8">
        <ShardMap shards={items} holder={holder} />
      </Section>
      <div className="mt-8 grid grid-cols-2 gap-x-10 gap-y-8 max-xl:grid-cols-1">
        <Holders shards={items} task={task} holder={holder} onHolder={setHolder} />
        <Moves dataset={id} />
      </div>
      <Preview id={id} shards={items} />
      <ShardTable id={id} total={total} cursor={cursor} />
    </>
  );
}
