/** Data: the datasets, and for each who holds which part of it, how far it is, and real samples. */
import { useMemo } from "react";
import type { Dataset } from "../../api/types";
import { count, moment } from "../../lib/format";
import { useCluster } from "../../state/cluster";
import { hrefTo, usePlace } from "../../state/url";
import { Empty, Fault, Loading } from "../../ui/empty";
import { Page } from "../../ui/page";
import { Table, type Column } from "../../ui/table";
import { DatasetPage } from "./page";

export default function Data() {
  const id = usePlace().path[1];
  return id ? <DatasetPage id={id} key={id} /> : <Datasets />;
}

const COLUMNS: Column<Dataset>[] = [
  { name: "Dataset", width: "minmax(8rem, 1.2fr)", cell: (data) => data.name, by: (data) => data.name },
  { name: "Samples", width: "7rem", right: true, cell: (data) => count(data.total_samples), by: (data) => data.total_samples },
  { name: "Shards", width: "6rem", right: true, cell: (data) => count(data.shard_count), by: (data) => data.shard_count },
  { name: "Shard size", width: "6rem", right: true, cell: (data) => count(data.shard_size), by: (data) => data.shard_size },
  { name: "Format", width: "6rem", cell: (data) => data.format || "–", by: (data) => data.format },
  { name: "Order", width: "9rem", cell: (data) => (data.shuffle ? `shuffled, seed ${data.seed}` : "as it is") },
  { name: "Registered", width: "10rem", cell: (data) => <time>{moment(data.registered_at)}</time>, by: (data) => data.registered_at },
  { name: "Path", width: "minmax(8rem, 2fr)", cell: (data) => <span className="text-dim" title={data.path}>{data.path || "–"}</span> },
];

function Datasets() {
  const { cluster, fault, loading } = useCluster();
  const rows = useMemo(() => [...(cluster?.datasets.values() ?? [])], [cluster?.datasets]);
  return (
    <Page title={<>Data <span className="font-normal text-faint">{count(cluster?.totals?.datasets ?? rows.length)}</span></>}>
      {rows.length === 0 ? (
        <div className="px-6">
          {fault ? <Fault error={fault} /> : loading ? <Loading /> : (
            <Empty title="No dataset is registered" text="A training script registers one when it asks for run.batches(…)." command="strata datasets" />
          )}
        </div>
      ) : (
        <Table fill label="Datasets" rows={rows} columns={COLUMNS} keyOf={(data) => data.id} href={(data) => hrefTo(["data", data.id])} sort={{ column: "Dataset", down: false }} />
      )}
    </Page>
  );
}
