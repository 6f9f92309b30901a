/** The table of shards, one page at a time: id, range of samples, state, owner. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, pageOf } from "../../api/client";
import type { Timeline } from "../../api/timeline";
import type { Shard } from "../../api/types";
import { count, UNRECORDED } from "../../lib/format";
import { useTimeline } from "../../state/cluster";
import { hrefTo, useParam } from "../../state/url";
import { Button, Field } from "../../ui/controls";
import { ErrorMessage, Loading } from "../../ui/placeholders";
import { Mark } from "../../ui/state-mark";
import { Section } from "../../ui/page";
import { Table, type Column } from "../../ui/table";

export const SHARDS_PER_PAGE = 50;
const REFRESH_MS = 3000;

/** The shards from an index on, now or at a past moment. */
export function shardsFrom(timeline: Timeline, id: string, first: number, limit: number, atMs: number | null, signal: AbortSignal) {
  const cursor = first > 0 ? String(first) : "";
  return atMs === null
    ? pageOf(api.GET("/api/datasets/{dataset_id}/shards", { params: { path: { dataset_id: id }, query: { limit, cursor } }, signal }))
    : timeline.shards({ dataset_id: id, time_ms: atMs, limit, cursor }, signal);
}

/** The first and the last sample of a shard. */
export function rangeOf({ start_index, end_index }: Pick<Shard, "start_index" | "end_index">): string {
  if (start_index === null || end_index === null) return UNRECORDED;
  if (start_index === end_index) return "none";
  return end_index - start_index === 1 ? exact(start_index) : `${exact(start_index)} – ${exact(end_index - 1)}`;
}

/** A number with every digit, since a range is looked up. */
const exact = (value: number) => value.toLocaleString("en-GB");

/** The first shard of the page with a shard; the last page for a shard beyond the end. */
export function pageStart(shard: number, total: number): number {
  const last = Math.max(total - 1, 0);
  const wanted = Number.isFinite(shard) ? Math.min(Math.max(Math.floor(shard), 0), last) : 0;
  return wanted - (wanted % SHARDS_PER_PAGE);
}

/** The unit of a shard's range: samples of the dataset, or places in the order of the epoch. */
const rangeUnit = ([first]: readonly (Shard & { layout?: string })[]) => (first?.layout === "epoch" ? "Places in the epoch" : "Samples");

const columns = (range: string): Column<Shard>[] => [
  { name: "Shard", width: "5rem", right: true, cell: (shard) => exact(shard.shard_id) },
  { name: range, width: "minmax(9rem, 14rem)", right: true, cell: rangeOf },
  { name: "Count", width: "6rem", right: true, cell: ({ start_index, end_index }) => (start_index === null || end_index === null ? "–" : exact(end_index - start_index)) },
  { name: "State", width: "7rem", cell: (shard) => <Mark state={shard.state} /> },
  {
    name: "Owner",
    width: "minmax(8rem, 2fr)",
    cell: ({ worker_id }) => (worker_id ? <a className="hover:underline" href={hrefTo(["workers", worker_id])}>{worker_id}</a> : <span className="text-faint">none</span>),
  },
];

export function ShardTable({ id, total, cursor }: { id: string; total: number; cursor: number | null }) {
  const [chosen, setChosen] = useParam("shard");
  const timeline = useTimeline();
  const first = pageStart(Number(chosen), total);
  const { data, error } = useQuery({
    queryKey: ["page of shards", id, first, cursor],
    queryFn: ({ signal }) => shardsFrom(timeline, id, first, SHARDS_PER_PAGE, cursor, signal),
    refetchInterval: cursor === null ? REFRESH_MS : false,
    placeholderData: keepPreviousData,
    retry: false,
  });
  const last = Math.min(first + SHARDS_PER_PAGE, total) - 1;
  return (
    <Section title="Shards" className="mt-8" aside={`${exact(first)} to ${exact(last)} of ${exact(total)}, numbered from 0`}>
      {error ? <ErrorMessage error={error} /> : data ? <Table label="Shards" rows={data.items} columns={columns(rangeUnit(data.items))} keyOf={(shard) => String(shard.shard_id)} /> : <Loading />}
      {total > SHARDS_PER_PAGE && (
        <div className="mt-3 flex flex-wrap items-center gap-2">
          <Button disabled={first === 0} onClick={() => setChosen(String(first - SHARDS_PER_PAGE))}>Previous {count(SHARDS_PER_PAGE)}</Button>
          <Button disabled={last >= total - 1} onClick={() => setChosen(String(first + SHARDS_PER_PAGE))}>Next {count(SHARDS_PER_PAGE)}</Button>
          <GoTo onShard={setChosen} />
        </div>
      )}
    </Section>
  );
}

function GoTo({ onShard }: { onShard: (shard: string) => void }) {
  const [typed, setTyped] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (/^\d+$/.test(typed.trim())) onShard(typed.trim());
  };
  return (
    <form onSubmit={submit} className="flex gap-2">
      <Field label="Shard number" className="w-32" inputMode="numeric" value={typed} onChange={(event) => setTyped(event.target.value)} />
      <Button type="submit">Go to shard</Button>
    </form>
  );
}
