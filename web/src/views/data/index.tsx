/** Data: the list of datasets, a form to register one, and a page for each dataset. */
import { useMemo } from "react";
import type { Dataset } from "../../api/types";
import { count, moment } from "../../lib/format";
import { useCluster } from "../../state/cluster";
import { hrefTo, usePlace } from "../../state/url";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Page } from "../../ui/page";
import { Table, type Column } from "../../ui/table";
import { DatasetPage } from "./dataset-page";
import { RegisterPage } from "./register";

/** The form has a parameter instead of a path, since a dataset may have any id. */
const REGISTER = "register";

export default function Data() {
  const { path, params } = usePlace();
  const id = path[1];
  if (!id && params.form === REGISTER) return <RegisterPage />;
  return id ? <DatasetPage id={id} key={id} /> : <Datasets />;
}

const COLUMNS: Column<Dataset>[] = [
  { name: "Dataset", width: "minmax(8rem, 1.2fr)", cell: (data) => data.name, by: (data) => data.name },
  { name: "Samples", width: "7rem", right: true, cell: (data) => count(data.total_samples), by: (data) => data.total_samples },
  { name: "Shards", width: "6rem", right: true, cell: (data) => count(data.shard_count), by: (data) => data.shard_count },
  { name: "Shard size", width: "6rem", right: true, cell: (data) => count(data.shard_size), by: (data) => data.shard_size },
  { name: "Format", width: "6rem", cell: (data) => data.format || "–", by: (data) => data.format },
  { name: "Order", width: "9rem", cell: (data) => (data.shuffle ? `shuffled, seed ${data.seed}` : "not shuffled") },
  { name: "Registered", width: "10rem", cell: (data) => <time>{moment(data.registered_at)}</time>, by: (data) => data.registered_at },
  { name: "Path", width: "minmax(8rem, 2fr)", cell: (data) => <span className="text-dim" title={data.path}>{data.path || "–"}</span> },
];

function Datasets() {
  const { cluster, cursor, error, loading } = useCluster();
  const aside = cursor === null && <a href={hrefTo(["data"], { form: REGISTER })} className="control inline-flex items-center border-accent! font-medium text-accent!">Register a dataset</a>;
  const rows = useMemo(() => [...(cluster?.datasets.values() ?? [])], [cluster?.datasets]);
  return (
    <Page title={<>Data <span className="font-normal text-faint">{count(cluster?.totals?.datasets ?? rows.length)}</span></>} aside={aside}>
      {rows.length === 0 ? (
        <div className="px-6">
          {error ? <ErrorMessage error={error} /> : loading ? <Loading /> : (
            <Empty title="No dataset is registered" text="Register one here. A training script that calls run.batches(…) registers its dataset by itself." command="strata datasets" />
          )}
        </div>
      ) : (
        <Table fill label="Datasets" rows={rows} columns={COLUMNS} keyOf={(data) => data.id} href={(data) => hrefTo(["data", data.id])} sort={{ column: "Dataset", down: false }} />
      )}
    </Page>
  );
}
