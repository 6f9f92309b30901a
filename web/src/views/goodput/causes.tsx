/** What caused lost time, what it cost, and what would have saved it. */
import type { GoodputCause } from "../../api/timeline";
import { clock, duration } from "../../lib/format";
import { visible } from "../../lib/text";
import { momentText } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { money } from "./time-classes";

interface Props {
  causes: readonly GoodputCause[];
  currency: string;
  /** Events are in the log of this page, so that they can be opened. */
  linked?: boolean;
}

export function Causes({ causes, currency, linked = true }: Props) {
  if (causes.length === 0) return <p className="text-faint">No time was lost.</p>;
  return (
    <ol>
      {causes.map((cause) => (
        <li key={`${cause.kind} ${cause.ref} ${cause.text}`} className="grid grid-cols-[4rem_4.5rem_minmax(0,1fr)] gap-x-3 border-b border-line/60 py-1.5">
          <span className="text-right">{duration(cause.seconds * 1000)}</span>
          <span className="text-right text-dim">{money(currency, cause.cost)}</span>
          <span className="min-w-0">
            <span>{visible(cause.text)}</span>{" "}
            {linked && cause.ref && cause.at_ms !== null && (
              <a href={hrefTo(["timeline"], { event: cause.ref, t: momentText(cause.at_ms!) })} className="whitespace-nowrap text-accent underline">
                {cause.ref} at {clock(cause.at_ms!)}
              </a>
            )}
            {cause.saving && <span className="block text-s text-active" title={cause.saving.method}>{visible(cause.saving.text)}</span>}
          </span>
        </li>
      ))}
    </ol>
  );
}
