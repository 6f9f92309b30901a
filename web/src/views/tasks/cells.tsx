/** What lists and the page of a task say of it, in the same words. */
import type { Task, Worker } from "../../api/types";
import { count, duration } from "../../lib/format";
import { Meter } from "../../ui/marks";

export function progressOf(task: Task) {
  const { progress, status } = task;
  const label = progress === null ? "–" : `${Math.floor(progress)} %`;
  return <Meter share={progress === null ? null : progress / 100} label={label} state={status} />;
}

/** How many processes it has, of those it asked for. */
export function workersOf(task: Task): string {
  return `${count(task.worker_ids_total)} / ${count(task.worker_count + task.spares)}`;
}

const ENDED = new Set<string>(["completed", "failed", "stopped"]);

/** How a worker of a task looks; once the task has ended, workers that are gone are not listed. */
export function workerState(task: Task, worker: Worker | undefined): string {
  return worker?.status ?? (ENDED.has(task.status) ? "stopped" : "idle");
}

export function elapsed(task: Task, now: number): string {
  if (task.started_at === null) return "–";
  return duration((task.completed_at ?? Math.max(now, task.started_at)) - task.started_at);
}
