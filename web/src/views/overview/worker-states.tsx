/** The number of workers in each state. */
import type { Totals, WorkerStatus } from "../../api/types";
import { count } from "../../lib/format";
import { hrefTo } from "../../state/url";
import { lookOf, Mark } from "../../ui/state-mark";
import { Section } from "../../ui/page";

const ORDER: readonly WorkerStatus[] = ["active", "checkpointing", "recovering", "idle", "failed"];

export function WorkerStates({ totals }: { totals: Totals | null }) {
  if (!totals) return null;
  return (
    <Section title="Workers" aside={`${count(totals.workers)} in total`}>
      <div aria-hidden className="mb-3 flex h-2 gap-0.5 overflow-hidden rounded-full bg-line">
        {ORDER.filter((status) => totals.workers_by_status[status]).map((status) => (
          <span
            key={status}
            style={{
              flexGrow: totals.workers_by_status[status],
              background: `var(--color-${lookOf(status).colour})`,
            }}
          />
        ))}
      </div>
      <ul>
        {ORDER.map((status) => (
          <li key={status} className="flex justify-between py-0.5">
            <a href={hrefTo(["workers"], { status })} className="hover:underline">
              <Mark state={status} />
            </a>
            <span className={totals.workers_by_status[status] ? "" : "text-faint"}>
              {count(totals.workers_by_status[status])}
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}
