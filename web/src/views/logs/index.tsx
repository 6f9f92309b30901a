/** Logs: the lines of the coordinator, the agents and the workers, followed, filtered and searched. */
import { useDeferredValue, useEffect, useMemo, useState, useSyncExternalStore } from "react";
import { curl, type ApiError } from "../../api/client";
import type { LogEntry } from "../../api/types";
import { count, moment } from "../../lib/format";
import { IncrementalSearch } from "../../lib/search";
import { useCluster, useCursor, useDemo } from "../../state/cluster";
import { LogFeed, type LogFilters } from "../../state/log-feed";
import { useDemoLines } from "../../state/simulated";
import { useParam } from "../../state/url";
import { Button, Choice, Field } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Page } from "../../ui/page";
import { asText, download } from "./download";
import { LoadOlder } from "./load-older";
import { Tail } from "./tail";

const LEVELS = [["", "any level"], ["info", "info and above"], ["warn", "warnings and errors"], ["error", "errors"]] as const;

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
  const { feed, log: recorded } = useFeed(filters, cursor, demo);
  const simulated = useDemoLines(cursor, filters, demo);
  const log = demo ? { ...recorded, entries: simulated.entries, loading: simulated.loading, error: simulated.error, older: "" } : recorded;
  const { cluster } = useCluster();
  const tasks = [...(cluster?.tasks.keys() ?? [])];
  const deferred = useDeferredValue(search);
  const [incremental] = useState(() => new IncrementalSearch<LogEntry>((entry) => entry.message));
  const { matches, error } = useMemo(
    () => incremental.run(log.entries, deferred, regex !== ""),
    [incremental, log.entries, deferred, regex],
  );
  const aside = (
    <>
      <Field label="Search" type="search" data-search value={search} onChange={(event) => setSearch(event.target.value)} className="w-56" aria-invalid={error !== ""} />
      <Button aria-pressed={regex !== ""} onClick={() => setRegex(regex ? "" : "1")} className={regex ? "bg-chosen!" : ""} title="Regular expression">
        .*
      </Button>
      <Choice label="Level" value={level} onChange={setLevel} options={LEVELS} />
      <Choice label="Source" value={source} onChange={setSource} options={[["", "any source"], ["coordinator", "coordinator"], ["worker", "workers"], ["agent", "agents"]]} />
      <Choice label="Task" value={task} onChange={setTask} options={[["", "any task"], ...tasks.map((each) => [each, each] as const)]} />
      <Field label="Worker" value={worker} onChange={(event) => setWorker(event.target.value)} className="w-28" />
      <Button onClick={() => download("strata.log", asText(matches))} disabled={matches.length === 0}>Download</Button>
      <CopyButton label="Copy as curl" text={() => curl("/logs", { ...filters, search, regex: regex !== "", limit: 1000 })} />
    </>
  );
  return (
    <Page title={<Title shown={matches.length} loaded={log.entries.length} cursor={cursor} />} aside={aside}>
      {error && <p role="alert" className="px-6 pb-2 text-failed">Not a regular expression: {error}</p>}
      {log.interrupted && <Interrupted error={log.interrupted} />}
      {log.skipped > 0 && <p className="px-6 pb-2 text-recovering">{count(log.skipped)} lines came too fast to be shown. They are stored: choose a filter or reload to see them.</p>}
      {matches.length > 0 ? (
        <Tail entries={matches} arrived={log.arrived} following={cursor === null}>
          <LoadOlder feed={feed} log={log} />
        </Tail>
      ) : (
        <div className="px-6">
          {log.error ? <ErrorMessage error={log.error} retry={() => void feed.open()} /> : log.loading ? <Loading /> : (
            <Empty title="No line matches" text="Choose another level, source, task or search text." command="strata logs -f" />
          )}
        </div>
      )}
    </Page>
  );
}

/** The coordinator refuses the stream: new lines are missing until it accepts it again. */
function Interrupted({ error }: { error: ApiError }) {
  return (
    <p role="alert" className="px-6 pb-2 text-failed">
      New lines are not shown: {error.message}. <span className="text-dim">{error.hint} Trying again…</span>
    </p>
  );
}

function Title({ shown, loaded, cursor }: { shown: number; loaded: number; cursor: number | null }) {
  return (
    <>
      Logs{" "}
      <span className="font-normal text-faint">
        {count(shown)}
        {shown < loaded && ` of ${count(loaded)}`}
        {cursor !== null && ` until ${moment(cursor)}`}
      </span>
    </>
  );
}

function useFeed(filters: LogFilters, cursor: number | null, demo: boolean) {
  const feed = useMemo(() => new LogFeed(filters, cursor), [filters, cursor]);
  useEffect(() => {
    if (demo) return;
    void feed.open();
    return feed.close;
  }, [feed, demo]);
  return { feed, log: useSyncExternalStore(feed.subscribe, feed.read) };
}
