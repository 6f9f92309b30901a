/** Logs: what the coordinator and all workers say, as it comes; searched without waiting. */
import { useDeferredValue, useEffect, useMemo, useState, useSyncExternalStore } from "react";
import { curl } from "../../api/client";
import type { LogEntry } from "../../api/types";
import { count, moment } from "../../lib/format";
import { Sieve } from "../../lib/sieve";
import { useCluster, useCursor, useDemo } from "../../state/cluster";
import { LogFeed } from "../../state/logs";
import { useDemoLines } from "../../state/simulated";
import { useParam } from "../../state/url";
import { Button, Choice, Field } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Empty, Fault, Loading } from "../../ui/empty";
import { Page } from "../../ui/page";
import { asText, download } from "./download";
import { Found } from "./found";
import { Tail } from "./tail";

const LEVELS = [["", "any level"], ["info", "info and above"], ["warn", "warnings"], ["error", "errors"]] as const;

export default function Logs() {
  const [level, setLevel] = useParam("level");
  const [source, setSource] = useParam("source");
  const [task, setTask] = useParam("task");
  const [worker, setWorker] = useParam("worker");
  const [search, setSearch] = useParam("q");
  const [regex, setRegex] = useParam("regex");
  const cursor = useCursor();
  const filters = useMemo(
    () => ({ level, source, task_id: task, worker_id: worker }),
    [level, source, task, worker],
  );
  const demo = useDemo() === "recorded";
  const { feed, lines: told } = useFeed(filters, cursor, demo);
  const simulated = useDemoLines(cursor, filters, demo);
  const lines = demo ? { ...told, entries: simulated.entries, loading: simulated.loading, fault: simulated.error, older: "" } : told;
  const { cluster } = useCluster();
  const tasks = [...(cluster?.tasks.keys() ?? [])];
  const sought = useDeferredValue(search);
  const [sieve] = useState(() => new Sieve<LogEntry>((entry) => entry.message));
  const { shown, fault } = useMemo(
    () => sieve.sift(lines.entries, sought, regex !== ""),
    [sieve, lines.entries, sought, regex],
  );
  const aside = (
    <>
      <Field label="Search" type="search" data-search value={search} onChange={(event) => setSearch(event.target.value)} className="w-56" aria-invalid={fault !== ""} />
      <Button aria-pressed={regex !== ""} onClick={() => setRegex(regex ? "" : "1")} className={regex ? "bg-chosen!" : ""} title="Regular expression">
        .*
      </Button>
      <Choice label="Level" value={level} onChange={setLevel} options={LEVELS} />
      <Choice label="Source" value={source} onChange={setSource} options={[["", "any source"], ["coordinator", "coordinator"], ["worker", "workers"], ["agent", "agents"]]} />
      <Choice label="Task" value={task} onChange={setTask} options={[["", "any task"], ...tasks.map((each) => [each, each] as const)]} />
      <Field label="Worker" value={worker} onChange={(event) => setWorker(event.target.value)} className="w-28" />
      <Button onClick={() => download("strata.log", asText(shown))} disabled={shown.length === 0}>Download</Button>
      <CopyButton label="Copy as curl" text={() => curl("/logs", { ...filters, search, regex: regex !== "", limit: 1000 })} />
    </>
  );
  return (
    <Page title={<Title shown={shown.length} known={lines.entries.length} cursor={cursor} />} aside={aside}>
      {fault && <p role="alert" className="px-6 pb-2 text-failed">Not a regular expression: {fault}</p>}
      {lines.skipped > 0 && <p className="px-6 pb-2 text-recovering">{count(lines.skipped)} lines came too fast to be shown; a search finds them.</p>}
      {shown.length > 0 ? (
        <Tail entries={shown} arrived={lines.arrived} following={cursor === null}>
          <Found feed={feed} lines={lines} />
        </Tail>
      ) : (
        <div className="px-6">
          {lines.fault ? <Fault error={lines.fault} retry={() => void feed.open()} /> : lines.loading ? <Loading /> : (
            <Empty title="No line matches" text="Choose another level, source, task or search text." command="strata logs -f" />
          )}
        </div>
      )}
    </Page>
  );
}

function Title({ shown, known, cursor }: { shown: number; known: number; cursor: number | null }) {
  return (
    <>
      Logs{" "}
      <span className="font-normal text-faint">
        {count(shown)}
        {shown < known && ` of ${count(known)}`}
        {cursor !== null && ` until ${moment(cursor)}`}
      </span>
    </>
  );
}

type Filters = Record<string, string>;

function useFeed(filters: Filters, cursor: number | null, demo: boolean) {
  const feed = useMemo(() => new LogFeed(filters, cursor), [filters, cursor]);
  useEffect(() => {
    if (demo) return;
    void feed.open();
    return feed.close;
  }, [feed, demo]);
  return { feed, lines: useSyncExternalStore(feed.subscribe, feed.read) };
}
