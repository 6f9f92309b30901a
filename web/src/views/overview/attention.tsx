/** Problems that need attention, each with its next step. */
import type { Attention } from "../../api/types";
import { hrefTo } from "../../state/url";
import { lookOf } from "../../ui/state-mark";

const VIEW_OF: Record<string, string> = {
  worker: "workers",
  task: "tasks",
  checkpoint: "checkpoints",
  barrier: "barriers",
  agent: "settings",
};

/** The address of the item that a problem is about; workers and tasks have their own pages. */
export function hrefOf(subject: string): string {
  const [kind = "", ...rest] = subject.split(":");
  const id = rest.join(":");
  const view = VIEW_OF[kind] ?? "overview";
  return hrefTo(kind === "worker" || kind === "task" ? [view, id] : [view]);
}

export function AttentionList({ items }: { items: readonly Attention[] }) {
  if (items.length === 0) return null;
  return (
    <section aria-label="Needs attention" className="mb-6">
      <ul>
        {items.map(({ severity, subject, text, hint }) => (
          <li
            key={`${subject} ${severity}`}
            className="flex items-baseline gap-x-3 border-b border-line/60 py-1.5"
          >
            <span aria-hidden className={`${lookOf(severity).text} w-3 text-center`}>
              {severity === "error" ? "✕" : "▲"}
            </span>
            <p className="flex min-w-0 flex-wrap gap-x-3">
              <a href={hrefOf(subject)} className="font-medium hover:underline">
                {text}
              </a>
              <span className="text-dim">{hint}</span>
            </p>
          </li>
        ))}
      </ul>
    </section>
  );
}
