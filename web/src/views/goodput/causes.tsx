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
  /** A price is known, so that each cause has a cost. */
  priced: boolean;
  /** Events are in the log of this page, so that they can be opened. */
  linked?: boolean;
}

export function Causes({ causes, currency, priced, linked = true }: Props) {
  if (causes.length === 0) return <p className="text-faint">No time was lost.</p>;
  const widths = priced ? "grid-cols-[5.5rem_5rem_minmax(0,1fr)]" : "grid-cols-[5.5rem_minmax(0,1fr)]";
  return (
    <div role="table" aria-label="Causes of lost time">
      <div role="row" className={`grid ${widths} gap-x-3 border-b border-line py-1.5 text-s text-faint`}>
        <span role="columnheader" className="text-right">Lost</span>
        {priced && <span role="columnheader" className="text-right">Cost</span>}
        <span role="columnheader">Cause</span>
      </div>
      {causes.map((cause) => (
        <div role="row" key={`${cause.kind} ${cause.ref} ${cause.text}`} className={`grid ${widths} gap-x-3 border-b border-line/60 py-1.5`}>
          <span role="cell" className="text-right whitespace-nowrap">{duration(cause.seconds * 1000)}</span>
          {priced && <span role="cell" className="text-right whitespace-nowrap text-dim">{money(currency, cause.cost)}</span>}
          <span role="cell" className="min-w-0">
            <span>{visible(cause.text)}</span>{" "}
            {linked && cause.ref && cause.at_ms !== null && (
              <a href={hrefTo(["timeline"], { event: cause.ref, t: momentText(cause.at_ms!) })} className="whitespace-nowrap text-accent underline">
                {cause.ref} at {clock(cause.at_ms!)}
              </a>
            )}
            {cause.saving && <span className="block text-s text-active" title={cause.saving.method}>{visible(cause.saving.text)}</span>}
          </span>
        </div>
      ))}
    </div>
  );
}
