/** Goodput: what the workers' time was spent on, what caused losses, and what they cost. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { curl } from "../../api/client";
import { runsGoodput, type Goodput, type GoodputClass, type CauseKind, type GoodputRow, type RunsGoodput } from "../../api/timeline";
import { count, duration } from "../../lib/format";
import { useCluster, useRun, useTimeline } from "../../state/cluster";
import { go, useParam, usePlace } from "../../state/url";
import { Choice, Fact, Field } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Loading, TimelineError } from "../../ui/placeholders";
import { Page, Scroll, Section } from "../../ui/page";
import { Table, type Column } from "../../ui/table";
import { Causes } from "./causes";
import { StackedArea } from "./stacked-area";
import { inkOf, isPrice, money, share } from "./time-classes";

const REFRESH_MS = 10_000;
const ALL = "all-runs";

export default function GoodputView() {
  const chosen = usePlace().path[1] ?? "";
  const [price, setPrice] = useParam("price");
  const { cluster } = useCluster();
  const tasks = [...(cluster?.tasks.keys() ?? [])];
  const known = chosen === "" || chosen === ALL || tasks.includes(chosen) ? tasks : [chosen, ...tasks];
  const aside = (
    <>
      <PriceField key={price} price={price} onPrice={setPrice} />
      <Choice
        label="Task"
        value={chosen}
        onChange={(task) => go(task ? ["goodput", task] : ["goodput"], price ? { price } : {})}
        options={[["", "newest task"], [ALL, "all runs"], ...known.map((each) => [each, each] as const)]}
      />
      <CopyButton label="Copy as curl" text={() => (chosen === ALL ? curl("/timeline/goodput/runs", { price }) : curl("/timeline/goodput", { task: chosen, price }))} />
    </>
  );
  return (
    <Page title="Goodput" aside={aside}>
      <Scroll label="Goodput">{chosen === ALL ? <AllRuns price={price} /> : <OneTask task={chosen} price={price} />}</Scroll>
    </Page>
  );
}

/** The price in the address; it changes when the text is a complete price or is empty. */
function PriceField({ price, onPrice }: { price: string; onPrice: (price: string) => void }) {
  const [text, setText] = useState(price);
  const wrong = text !== "" && !isPrice(text);
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        if (!wrong) onPrice(text.trim());
      }}
    >
      <Field
        label="Price, such as 2.49/gpu-hour"
        className="w-60"
        value={text}
        aria-invalid={wrong}
        title="2.49/gpu-hour, 3/worker-hour or 20/host-hour; of one host: host-a=3/gpu-hour,2.49/gpu-hour. Enter applies it."
        onChange={(event) => setText(event.target.value)}
        onBlur={() => !wrong && onPrice(text.trim())}
      />
    </form>
  );
}

function OneTask({ task, price }: { task: string; price: string }) {
  const timeline = useTimeline();
  const run = useRun();
  const { data, error, isPending } = useQuery({
    queryKey: ["goodput", task, price],
    queryFn: ({ signal }) => timeline.goodput({ task, price }, signal),
    refetchInterval: ({ state }) => (state.error || run ? false : REFRESH_MS),
    placeholderData: keepPreviousData,
    retry: false,
  });
  if (error) return <TimelineError error={error} />;
  if (isPending) return <Loading />;
  return <TaskGoodput goodput={data} />;
}

export function TaskGoodput({ goodput }: { goodput: Goodput }) {
  return (
    <>
      <dl className="grid grid-cols-[repeat(auto-fill,minmax(9rem,1fr))] gap-x-6 gap-y-4">
        <Fact name="Task">{goodput.task}</Fact>
        <Fact name="Goodput"><span className="text-xl font-semibold">{share(goodput.goodput)}</span></Fact>
        <Fact name="Worker time">{duration(goodput.total_s * 1000)}</Fact>
        <Fact name="Workers">{count(goodput.workers)}</Fact>
        {goodput.pending_s > 0 && <Fact name="Not counted yet"><span title="Steps that are not finished or not committed">{duration(goodput.pending_s * 1000)}</span></Fact>}
        {goodput.price !== "" && <Fact name="Cost">{money(goodput.currency, goodput.cost)}</Fact>}
        {goodput.price !== "" && <Fact name="Cost of lost time"><span className="text-failed">{money(goodput.currency, goodput.lost_cost)}</span></Fact>}
      </dl>
      {goodput.notes.map((note) => <p key={note} className="mt-4 text-recovering">▲ {note}</p>)}
      <Section title="Worker time" className="mt-8" aside="a click moves the time cursor">
        <StackedArea goodput={goodput} />
      </Section>
      <div className="mt-8 grid grid-cols-[minmax(0,31rem)_minmax(0,1fr)] gap-x-10 gap-y-8 max-xl:grid-cols-1">
        <Section title="Classes">
          <Classes goodput={goodput} />
        </Section>
        <Section title="Causes of lost time" aside={goodput.causes_total > goodput.causes.length && `the most expensive of ${count(goodput.causes_total)}`}>
          <Causes causes={goodput.causes} currency={goodput.currency} priced={goodput.price !== ""} />
        </Section>
      </div>
    </>
  );
}

function columnsOf(goodput: Goodput): Column<GoodputClass>[] {
  const columns: Column<GoodputClass>[] = [
    {
      name: "Class",
      width: "minmax(13rem, 1fr)",
      cell: ({ name, label }) => (
        <span className="inline-flex items-center gap-2">
          <span aria-hidden className="size-2.5 shrink-0 rounded-xs" style={{ background: `var(--color-${inkOf(name).colour})`, opacity: inkOf(name).opacity }} />
          {label}
        </span>
      ),
    },
    { name: "Time", width: "5.5rem", right: true, cell: (each) => duration(each.seconds * 1000), by: (each) => each.seconds },
    { name: "Share", width: "4rem", right: true, cell: (each) => share(each.share), by: (each) => each.share },
  ];
  if (goodput.price !== "") {
    columns.push({ name: "Cost", width: "5rem", right: true, cell: (each) => money(goodput.currency, each.cost), by: (each) => each.cost ?? 0 });
  }
  return columns;
}

function Classes({ goodput }: { goodput: Goodput }) {
  return <Table label="Classes of worker time" rows={goodput.classes} columns={columnsOf(goodput)} keyOf={(each) => each.name} />;
}

function AllRuns({ price }: { price: string }) {
  const { data, error, isPending } = useQuery({
    queryKey: ["goodput of runs", price],
    queryFn: ({ signal }) => runsGoodput(price, signal),
    placeholderData: keepPreviousData,
    retry: false,
  });
  if (error) return <TimelineError error={error} />;
  if (isPending) return <Loading />;
  return <RunsOverview found={data} />;
}

function rowColumns(name: string, found: RunsGoodput): Column<GoodputRow>[] {
  const columns: Column<GoodputRow>[] = [
    { name, width: "minmax(8rem, 1fr)", cell: (row) => row.name, by: (row) => row.name },
    { name: "Worker time", width: "8rem", right: true, cell: (row) => duration(row.total_s * 1000), by: (row) => row.total_s },
    { name: "Goodput", width: "5rem", right: true, cell: (row) => share(row.goodput), by: (row) => row.goodput },
  ];
  if (found.price !== "") {
    columns.push({ name: "Cost", width: "6rem", right: true, cell: (row) => money(found.currency, row.cost), by: (row) => row.cost ?? 0 });
  }
  return columns;
}

function kindColumns(found: RunsGoodput): Column<CauseKind>[] {
  const columns: Column<CauseKind>[] = [
    { name: "Cause", width: "minmax(12rem, 1fr)", cell: ({ text }) => text, by: ({ text }) => text },
    { name: "Lost", width: "6rem", right: true, cell: (each) => duration(each.seconds * 1000), by: (each) => each.seconds },
    { name: "Causes", width: "5rem", right: true, cell: (each) => count(each.count), by: (each) => each.count },
  ];
  if (found.price !== "") {
    columns.push({ name: "Cost", width: "6rem", right: true, cell: (each) => money(found.currency, each.cost), by: (each) => each.cost ?? 0 });
  }
  return columns;
}

export function RunsOverview({ found }: { found: RunsGoodput }) {
  const tables = [["Run", found.runs], ["Week", found.weeks], ["Host", found.hosts]] as const;
  return (
    <>
      <dl className="grid grid-cols-[repeat(auto-fill,minmax(9rem,1fr))] gap-x-6 gap-y-4">
        <Fact name="Runs">{count(found.runs.length)}</Fact>
        <Fact name="Goodput"><span className="text-xl font-semibold">{share(found.goodput)}</span></Fact>
        <Fact name="Worker time">{duration(found.total_s * 1000)}</Fact>
        {found.price !== "" && <Fact name="Cost">{money(found.currency, found.cost)}</Fact>}
      </dl>
      {[...found.notes, ...found.left_out.map((each) => `left out: ${each}`)].map((note) => <p key={note} className="mt-4 text-recovering">▲ {note}</p>)}
      <div className="mt-8 grid grid-cols-2 gap-x-10 gap-y-8 max-xl:grid-cols-1">
        {tables.map(([name, rows]) => (
          <Section key={name} title={`By ${name.toLowerCase()}`}>
            <Table label={`Goodput by ${name.toLowerCase()}`} rows={rows} columns={rowColumns(name, found)} keyOf={(row) => row.name} sortParam={name.toLowerCase()} />
          </Section>
        ))}
        <Section title="By kind of cause">
          <Table label="Lost time by kind of cause" rows={found.kinds} columns={kindColumns(found)} keyOf={(each) => each.kind} sortParam="kind" />
        </Section>
        <Section title="Causes of lost time">
          <Causes causes={found.causes} currency={found.currency} priced={found.price !== ""} linked={false} />
        </Section>
      </div>
    </>
  );
}
