/** Problems that need attention, each with its next step. */
import type { Attention } from "../../api/types";
import { lookOf } from "../../ui/state-mark";
import { subjectHref } from "../../ui/subject";

export function AttentionList({ items }: { items: readonly Attention[] }) {
  if (items.length === 0) return null;
  return (
    <section aria-label="Needs attention" className="mb-6">
      <ul>
        {items.map(({ severity, subject, text, hint, alert }) => (
          <li
            key={alert || `${subject} ${severity}`}
            className="flex items-baseline gap-x-3 border-b border-line/60 py-1.5"
          >
            <span aria-hidden className={`${lookOf(severity).text} w-3 text-center`}>
              {severity === "error" ? "✕" : "▲"}
            </span>
            <p className="flex min-w-0 flex-wrap gap-x-3">
              <a href={subjectHref(subject)} className="font-medium hover:underline">
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
