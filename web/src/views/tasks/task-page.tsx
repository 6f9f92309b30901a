/** One task: its progress, request, actions, workers, history and log. */
import { useQuery } from "@tanstack/react-query";
import { curl } from "../../api/client";
import type { Task, TaskDetail } from "../../api/types";
import { bytes, count, moment, plural, UNRECORDED } from "../../lib/format";
import { useCluster, useCursor } from "../../state/cluster";
import { useLines } from "../../state/latest-lines";
import { hrefTo } from "../../state/url";
import { Fact } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Mark } from "../../ui/state-mark";
import { Page, Scroll, Section } from "../../ui/page";
import { LogLines } from "../logs/log-lines";
import { Lineage } from "./lineage";
import { Elapsed, hasEnded, progressOf, statusOf, workersOf, workerState } from "./task-cells";
import { LoggedMedia } from "../curves/logged-media";
import { TaskCurves } from "../curves/task-curves";
import { share } from "../goodput/time-classes";
import { useGoodput } from "../goodput/task-goodput";
import { HistoryList } from "../timeline/history";
import { Actions } from "./actions";
import { StacksPanel } from "./stacks";
import { taskQuery } from "./task-query";

const REFRESH_MS = 3000;

export function TaskPage({ id }: { id: string }) {
  const { cluster, cursor } = useCluster();
  const path = `/tasks/${encodeURIComponent(id)}`;
  const query = useQuery({ ...taskQuery(id), enabled: cursor === null, refetchInterval: REFRESH_MS });
  const detail = cursor === null ? query.data : undefined;
  const task: Task | undefined = cluster?.tasks.get(id) ?? detail;
  const title = (
    <>
      <a href={hrefTo(["tasks"])} className="font-normal text-dim hover:underline">Tasks</a>
      <span aria-hidden className="mx-2 font-normal text-faint">/</span>
      {id}
    </>
  );
  const aside = (
    <>
      {task && cursor === null && <Actions task={task} detail={detail} />}
      <CopyButton label="Copy as curl" text={() => curl(path)} />
    </>
  );
  return (
    <Page title={title} aside={aside}>
      <Scroll label={`Task ${id}`}>
        {task ? <Body task={task} detail={detail} /> : <Missing id={id} error={query.error} loading={query.isPending && cursor === null} />}
      </Scroll>
    </Page>
  );
}

function Missing({ id, error, loading }: { id: string; error: Error | null; loading: boolean }) {
  if (error) return <ErrorMessage error={error} />;
  if (loading) return <Loading />;
  return <Empty title={`There was no task ${id} at this moment`} text="It had not been submitted yet, or its record was deleted." command="strata tasks" />;
}

function Body({ task, detail }: { task: Task; detail: TaskDetail | undefined }) {
  const reason = detail?.waiting_for || detail?.reason || task.reason;
  return (
    <>
      <dl className="grid grid-cols-[repeat(auto-fill,minmax(9rem,1fr))] gap-x-6 gap-y-4">
        <Fact name="Status"><Mark state={task.status} label={statusOf(task)} /></Fact>
        <Fact name="Progress">{progressOf(task)}</Fact>
        <Fact name="Committed steps" word="committed steps">{count(task.committed_steps)}</Fact>
        <Fact name="Generation" word="generation">{count(task.generation)}{!hasEnded(task) && ` · ${task.phase}`}</Fact>
        <Fact name="Submitted">{moment(task.submitted_at)}</Fact>
        <Fact name="Time"><Elapsed task={task} /></Fact>
        <Fact name="Type">{task.type}</Fact>
        <Fact name={task.datasets.length > 1 ? "Datasets" : "Dataset"}>
          {task.datasets.length === 0 && "–"}
          {task.datasets.map((each) => <a key={each} className="mr-2 hover:underline" href={hrefTo(["data", each])}>{each}</a>)}
        </Fact>
        {(task.priority !== 0 || task.queue_position !== null) && <Fact name="Priority">{task.priority}</Fact>}
        {detail?.self_test && <Fact name="Self-test">before it starts on a host</Fact>}
        {detail?.preemptible && <Fact name="Preemptible">yes</Fact>}
        {detail && detail.after.length > 0 && (
          <Fact name="After tasks">{detail.after.map((each) => <a key={each} className="mr-2 hover:underline" href={hrefTo(["tasks", each])}>{each}</a>)}</Fact>
        )}
        {detail && <Fact name="Loss policy" word="loss policy">{detail.policy}</Fact>}
        {detail && <Fact name="State layout" word="state layout">{detail.model_state}</Fact>}
        {detail && <Fact name="Checkpoints kept">{detail.keep_count}</Fact>}
        {detail?.workdir && <Fact name="Folder"><span title={detail.workdir.digest}><span className="font-mono">{detail.workdir.digest.slice(0, 12)}</span> · {plural(detail.workdir.files, "file")}</span></Fact>}
        <GoodputShare task={task} />
        {task.completed_at !== null && <Fact name="Exit code">{task.exit_code}</Fact>}
      </dl>
      {reason && <p className="mt-4"><span className="text-faint">{task.status === "queued" || detail?.waiting_for ? "Waiting: " : "Reason: "}</span>{reason}</p>}
      <Lineage task={task} />
      <TaskCurves task={task} />
      <LoggedMedia task={task.id} running={detail !== undefined && !hasEnded(task)} />
      <div className="mt-8 grid grid-cols-2 gap-x-10 gap-y-8 max-xl:grid-cols-1">
        <Workers task={task} />
        {detail && <Request detail={detail} />}
      </div>
      <StacksPanel task={task} />
      <div className="mt-8 grid grid-cols-2 gap-x-10 gap-y-8 max-xl:grid-cols-1">
        <History id={task.id} />
        <Log id={task.id} />
      </div>
    </>
  );
}

/** The share of the worker time that was productive, as a link to where the rest went. */
function GoodputShare({ task }: { task: Task }) {
  const { data, isPending } = useGoodput(task.id, useCursor() === null && !hasEnded(task));
  const text = data && data.total_s > 0 ? share(data.goodput) : isPending ? "…" : UNRECORDED;
  return (
    <Fact name="Goodput">
      <a aria-label={`Goodput: ${text}`} className="text-accent hover:underline" href={hrefTo(["goodput", task.id])}>{text}</a>
    </Fact>
  );
}

function Workers({ task }: { task: Task }) {
  const { cluster } = useCluster();
  return (
    <Section title="Workers" aside={<a className="hover:underline" href={hrefTo(["workers"], { task: task.id })}>{workersOf(task)}</a>}>
      {task.worker_ids.length === 0 && <p className="text-faint">No worker yet.</p>}
      <ul className="flex flex-wrap gap-x-6 gap-y-1">
        {task.worker_ids.map((worker) => (
          <li key={worker}>
            <a href={hrefTo(["workers", worker])} className="hover:underline">
              <Mark state={workerState(task, cluster?.workers.get(worker))} label={worker} />
            </a>
          </li>
        ))}
        {task.worker_ids_total > task.worker_ids.length && (
          <li><a className="text-dim hover:underline" href={hrefTo(["workers"], { task: task.id })}>and {count(task.worker_ids_total - task.worker_ids.length)} more</a></li>
        )}
      </ul>
    </Section>
  );
}

function Request({ detail }: { detail: TaskDetail }) {
  const command = [detail.entry, ...detail.args].join(" ");
  return (
    <Section title="Request">
      <pre className="max-h-64 overflow-auto font-mono text-s whitespace-pre-wrap">
        {command || "no entry point: you start the workers"}
        {detail.workdir && `\nfolder: ${detail.workdir.digest} (${plural(detail.workdir.files, "file")}, ${bytes(detail.workdir.size_bytes)})`}
        {`\nconfig: ${JSON.stringify(detail.config, null, 2)}`}
        {detail.env_names.length > 0 && `\nenvironment: ${detail.env_names.join(", ")}`}
      </pre>
    </Section>
  );
}

function History({ id }: { id: string }) {
  return (
    <Section title="History" aside={<a className="hover:underline" href={hrefTo(["timeline"], { task: id })}>on the timeline</a>}>
      <HistoryList task={id} />
    </Section>
  );
}

function Log({ id }: { id: string }) {
  const { entries, error } = useLines({ task_id: id });
  return (
    <Section title="Log" aside={<a className="hover:underline" href={hrefTo(["logs"], { task: id })}>all lines</a>}>
      {error ? <ErrorMessage error={error} /> : <LogLines entries={entries} />}
    </Section>
  );
}
