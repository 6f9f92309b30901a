/** The newest stacks of a task's workers: collected before a hang was declared, or on request. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, bodyOf } from "../../api/client";
import type { StackFrame, Stacks, ThreadStack, WorkerStacks } from "../../api/timeline";
import type { Task } from "../../api/types";
import { count, moment } from "../../lib/format";
import { visible } from "../../lib/text";
import { momentText, useCluster, useTimeline } from "../../state/cluster";
import { go, hrefTo } from "../../state/url";
import { ActionError } from "../../ui/confirm";
import { Button } from "../../ui/controls";
import { ErrorMessage } from "../../ui/placeholders";
import { Section } from "../../ui/page";
import { Why } from "../timeline/why";
import { hasEnded } from "./task-cells";

const OPEN_REFRESH_MS = 500;
const REFRESH_MS = 5000;
const FRAMES = 30;

export function StacksPanel({ task }: { task: Task }) {
  const { cursor } = useCluster();
  const timeline = useTimeline();
  const queries = useQueryClient();
  const key = ["stacks", task.id, cursor];
  const { data, error } = useQuery({
    queryKey: key,
    queryFn: ({ signal }) => timeline.stacks(task.id, cursor, signal),
    refetchInterval: ({ state }) => (cursor !== null ? false : state.data?.ended === false ? OPEN_REFRESH_MS : REFRESH_MS),
  });
  const collect = useMutation({
    mutationFn: () => bodyOf(api.POST("/api/tasks/{task_id}/stacks", { params: { path: { task_id: task.id } } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: key }),
  });
  const live = cursor === null && !hasEnded(task);
  const aside = live && <Button onClick={() => collect.mutate()} disabled={collect.isPending || data?.ended === false}>Collect stacks</Button>;
  if (!live && !data && !error) return null;
  return (
    <section aria-label="Stacks" className="mt-8">
      <Section title="Stacks" aside={aside}>
        <ActionError error={collect.error} />
        {error && <ErrorMessage error={error} />}
        {!data && !error && <p className="text-faint">None recorded. They are collected before a hang is declared, or now.</p>}
        {data && <Collected stacks={data} task={task} />}
      </Section>
    </section>
  );
}

function Collected({ stacks, task }: { stacks: Stacks; task: Task }) {
  return (
    <>
      <p className="mb-2">
        <span className="text-faint">{moment(stacks.at_ms)} · </span>
        {visible(stacks.reason)}
        {!stacks.ended && <span role="status" className="text-dim"> · collecting…</span>}
      </p>
      <ul>
        {stacks.workers.map((worker) => <Worker key={worker.worker_id} worker={worker} />)}
      </ul>
      {stacks.left_out > 0 && <p className="text-faint">{count(stacks.left_out)} more workers were not asked.</p>}
      {stacks.ended && (
        <div className="mt-4">
          <Why
            key={stacks.collection}
            query={{ question: "hang", task: task.id, time_ms: stacks.at_ms + 1 }}
            onEvent={(ref) => go(["timeline"], { event: ref, t: momentText(stacks.at_ms) })}
          />
        </div>
      )}
    </>
  );
}

function Worker({ worker }: { worker: WorkerStacks }) {
  const threads = worker.processes.flatMap((process) => (process.threads ?? []).map((thread) => ({ process, thread })));
  const shown = threads.filter(({ thread }) => thread.main || (thread.frames ?? []).some((frame) => (frame.origin ?? "user") === "user"));
  return (
    <li className="border-b border-line py-1 last:border-0">
      <details>
        <summary className="cursor-pointer">
          <span className="font-medium">{worker.rank >= 0 ? `rank ${worker.rank}` : "no rank"}</span>{" "}
          <a href={hrefTo(["workers", worker.worker_id])} className="text-dim hover:underline">{worker.worker_id}</a>{" "}
          <span className="font-mono text-s">{worker.place ? visible(worker.place) : "not recorded"}</span>{" "}
          <Waits worker={worker} />
        </summary>
        <div className="py-2 pl-4">
          <p className="text-s text-faint">stacks by {worker.source}{worker.step >= 0 && `, step ${count(worker.step)}`}</p>
          {worker.notes.map((note) => <p key={note} className="text-s text-dim">{visible(note)}</p>)}
          {shown.map(({ process, thread }, index) => (
            <Thread key={index} thread={thread} title={`${thread.main ? "main thread" : `thread ${thread.name ?? ""}`} of process ${process.pid} ${process.program ?? ""}${process.state ? `, ${process.state}` : ""}`} />
          ))}
          {threads.length > shown.length && <p className="mt-1 text-s text-faint">{count(threads.length - shown.length)} more threads run only library code.</p>}
        </div>
      </details>
    </li>
  );
}

/** What the worker waits for, by its own report. */
function Waits({ worker }: { worker: WorkerStacks }) {
  const exchange = worker.exchange?.pending ? [`${worker.exchange.kind} ${count(worker.exchange.number)}`] : [];
  const waits = [...exchange, ...worker.waits_for];
  return waits.length > 0 ? <span className="text-dim">waits for {waits.map(visible).join(", ")}</span> : null;
}

function Thread({ thread, title }: { thread: ThreadStack; title: string }) {
  const frames = thread.frames ?? [];
  const hidden = (thread.cut ?? 0) + Math.max(0, frames.length - FRAMES);
  return (
    <div className="mt-2">
      <p className="text-s text-faint">{visible(title)}</p>
      <ol className="overflow-x-auto font-mono text-s">
        {frames.slice(0, FRAMES).map((frame, index) => (
          <li key={index} className={(frame.origin ?? "user") === "user" ? "font-medium" : "text-dim"}>{lineOf(frame)}</li>
        ))}
      </ol>
      {hidden > 0 && <p className="text-s text-faint">and {count(hidden)} more calls</p>}
    </div>
  );
}

const lineOf = ({ function: name, file, line }: StackFrame): string =>
  visible(`${name}  ${file ?? ""}${line ? `:${line}` : ""}`);
