/** The addresses of the items that problems and alerts are about. */
import { hrefTo } from "../state/url";

const VIEW_OF: Record<string, string> = {
  worker: "workers",
  task: "tasks",
  checkpoint: "checkpoints",
  barrier: "barriers",
  agent: "settings",
  host: "settings",
};

/** A subject with its kind as words: `worker:ID` is "worker ID". */
export const subjectText = (subject: string): string => subject.replace(":", " ");

/** The address of a subject such as `worker:ID`; workers, tasks and facts have their own pages. */
export function subjectHref(subject: string, momentText = ""): string {
  const [kind = "", ...rest] = subject.split(":");
  const id = rest.join(":");
  if (kind === "fact" && momentText) return hrefTo(["timeline"], { event: id, t: momentText });
  const view = VIEW_OF[kind] ?? "overview";
  return hrefTo(kind === "worker" || kind === "task" ? [view, id] : [view]);
}
