/** Barriers: the open ones with the workers that are missing, the latest rounds, and late arrivals. */
import { useMemo } from "react";
import { curl } from "../../api/client";
import type { Barrier } from "../../api/types";
import { clock, count, duration, plural } from "../../lib/format";
import { useCluster } from "../../state/cluster";
import { useFacts } from "../../state/facts";
import { useHistory } from "../../state/metrics";
import { hrefTo } from "../../state/url";
import { Chart } from "../../ui/chart";
import { CopyButton } from "../../ui/copy";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Mark, Meter } from "../../ui/state-mark";
import { Page, Scroll, Section } from "../../ui/page";
import { Table, type Column } from "../../ui/table";
import { Age } from "../../ui/time";
import { stragglers, type Straggler } from "./stragglers";

const REFRESH_MS = 5000;
const SHOWN = 50;

export default function Barriers() {
  const { cluster, error, loading } = useCluster();
  const all = useMemo(
    () => [...(cluster?.barriers.values() ?? [])].toSorted((a, b) => b.created_at - a.created_at),
    [cluster?.barriers],
  );
  const waiting = all.filter((barrier) => barrier.status === "waiting");
  return (
    <Page title="Barriers" aside={<CopyButton label="Copy as curl" text={() => curl("/barriers")} />}>
      <Scroll label="Barriers">
        {all.length === 0 ? (
          error ? <ErrorMessage error={error} /> : loading ? <Loading /> : (
            <Empty title="No barrier yet" text="A training script opens one with run.barrier(name). It is listed here from the first arrival on." command="strata barriers" />
          )
        ) : (
          <>
            <Waiting barriers={waiting} />
            <div className="mt-8 grid grid-cols-[minmax(0,3fr)_minmax(0,2fr)] gap-x-10 gap-y-8 max-xl:grid-cols-1">
              <Section title="Latest rounds" aside={plural(all.length, "barrier")}>
                <Rounds barriers={all.slice(0, SHOWN)} />
              </Section>
              <div className="flex min-w-0 flex-col gap-8">
                <Latency />
                <LateArrivals />
              </div>
            </div>
          </>
        )}
      </Scroll>
    </Page>
  );
}

function Waiting({ barriers }: { barriers: readonly Barrier[] }) {
  return (
    <Section title="Waiting now">
      {barriers.length === 0 && <p className="text-faint">No worker is waiting at a barrier.</p>}
      <ul>
        {barriers.map((barrier) => (
          <li key={barrier.id} className="grid grid-cols-[minmax(8rem,14rem)_10rem_5rem_minmax(0,1fr)] items-center gap-4 border-b border-line/60 py-1.5 max-md:grid-cols-2">
            <span className="truncate font-medium">{barrier.name} <span className="font-normal text-dim">{barrier.task_id}</span></span>
            <Meter share={barrier.arrived / Math.max(barrier.total, 1)} label={`${barrier.arrived}/${barrier.total}`} state="waiting" />
            <span className="text-right text-recovering"><Age at={barrier.created_at} /></span>
            <span className="truncate">
              <span className="text-faint">missing </span>
              {barrier.missing.map((worker, index) => (
                <span key={worker}>
                  {index > 0 && ", "}
                  <a href={hrefTo(["workers", worker])} className="hover:underline">{worker}</a>
                </span>
              ))}
              {barrier.missing_total > barrier.missing.length && ` and ${barrier.missing_total - barrier.missing.length} more`}
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}

/** Barrier times are recorded to the millisecond. */
const delay = (ms: number) => (ms < 1 ? "< 1 ms" : duration(ms));

const ROUND_COLUMNS: Column<Barrier>[] = [
  { name: "Barrier", width: "minmax(5.5rem, 1fr)", cell: (barrier) => barrier.name, by: (barrier) => barrier.name },
  { name: "Task", width: "minmax(5rem, 1fr)", cell: (barrier) => barrier.task_id, by: (barrier) => barrier.task_id },
  { name: "Status", width: "6rem", cell: (barrier) => <Mark state={barrier.status} />, by: (barrier) => barrier.status },
  { name: "Step", width: "4rem", right: true, cell: (barrier) => count(barrier.step), by: (barrier) => barrier.step },
  { name: "Arrived", width: "4.5rem", right: true, cell: (barrier) => `${barrier.arrived} / ${barrier.total}` },
  { name: "Opened", width: "5rem", right: true, cell: (barrier) => clock(barrier.created_at), by: (barrier) => barrier.created_at },
  { name: "Duration", width: "4.5rem", right: true, cell: (barrier) => (barrier.ended_at === null ? "–" : delay(barrier.ended_at - barrier.created_at)), by: (barrier) => (barrier.ended_at ?? 0) - barrier.created_at },
];

function Rounds({ barriers }: { barriers: readonly Barrier[] }) {
  return <Table label="Latest rounds" rows={barriers} columns={ROUND_COLUMNS} keyOf={(barrier) => barrier.id} sort={{ column: "Opened", down: true }} />;
}

function Latency() {
  const history = useHistory();
  const lines = useMemo(() => [{ values: history.barrier_latency_p99, colour: "recovering" }], [history]);
  return (
    <Section title="Latency, p99" aside="ms, last five minutes">
      <Chart label="Barrier latency, 99th percentile" at={history.at} lines={lines} least={10} height={128} />
    </Section>
  );
}

const LATE_COLUMNS: Column<Straggler>[] = [
  { name: "Worker", width: "minmax(6rem, 1fr)", cell: (each) => each.worker },
  { name: "Barrier", width: "minmax(4rem, 1fr)", cell: (each) => each.barrier, by: (each) => each.barrier },
  { name: "Arrived last", width: "5.25rem", right: true, cell: (each) => `${each.last} / ${each.rounds}`, by: (each) => each.last / each.rounds },
  { name: "Median", width: "4.5rem", right: true, cell: (each) => delay(each.medianMs), by: (each) => each.medianMs },
  { name: "Worst", width: "4.5rem", right: true, cell: (each) => delay(each.worstMs), by: (each) => each.worstMs },
];

function LateArrivals() {
  const facts = useFacts("BarrierArrived", 1000, REFRESH_MS);
  const rows = useMemo(() => stragglers(facts).slice(0, 20), [facts]);
  if (rows.length === 0) return null;
  return (
    <Section title="Late arrivals" aside="time behind the first arrival, latest rounds">
      <Table label="Late arrivals" rows={rows} columns={LATE_COLUMNS} sortParam="late" keyOf={(each) => `${each.barrier} ${each.worker}`} href={(each) => hrefTo(["workers", each.worker])} sort={{ column: "Median", down: true }} />
    </Section>
  );
}
