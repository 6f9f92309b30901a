/** Values of a task as lists and its page show them. */
import type { Task, Worker } from "../../api/types";
import { count, duration } from "../../lib/format";
import { useNow } from "../../state/cluster";
import { Meter } from "../../ui/state-mark";

export function progressOf(task: Task) {
  const { progress, status } = task;
  const label = progress === null ? "–" : `${Math.floor(progress)} %`;
  return <Meter share={progress === null ? null : progress / 100} label={label} state={status} />;
}

/** The status of a task; for a queued task with its place. */
export function statusOf({ status, queue_position }: Task): string {
  return queue_position === null || queue_position === undefined ? status : `${status}, place ${count(queue_position)}`;
}

/** The reason of a task's status, after a priority that is not the default. */
export function detailOf({ priority, reason }: Task): string {
  return [priority ? `priority ${priority}` : "", reason].filter(Boolean).join("; ");
}

/** The workers that a task has, of those it requested. */
export function workersOf(task: Task): string {
  return `${count(task.worker_ids_total)} / ${count(task.worker_count + task.spares)}`;
}

const ENDED = new Set<string>(["completed", "failed", "stopped"]);

export const hasEnded = (task: Task): boolean => ENDED.has(task.status);

/** The state of a worker of a task; a worker that is no longer listed is idle, or stopped with its task. */
export function workerState(task: Task, worker: Worker | undefined): string {
  return worker?.status ?? (hasEnded(task) ? "stopped" : "idle");
}

/** How long a task has run. */
export function Elapsed({ task }: { task: Task }) {
  const now = useNow();
  if (task.started_at === null) return "–";
  return duration((task.completed_at ?? Math.max(now, task.started_at)) - task.started_at);
}
