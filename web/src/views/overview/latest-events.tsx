/** The newest important events, each with a link to the timeline. */
import type { TimelineEvent } from "../../api/timeline";
import { clock } from "../../lib/format";
import { visible } from "../../lib/text";
import { momentText } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Section } from "../../ui/page";

export function LatestEvents({ items }: { items: readonly TimelineEvent[] }) {
  if (items.length === 0) return null;
  return (
    <Section title="Latest events">
      <ol>
        {items.map(({ ref, at_ms, kind, summary }) => (
          <li key={ref} title={kind}>
            <a
              href={hrefTo(["timeline"], { event: ref, t: momentText(at_ms) })}
              className="flex gap-3 py-0.5 hover:underline"
            >
              <time className="text-faint">{clock(at_ms)}</time>
              <span className="line-clamp-2 min-w-0">{visible(summary)}</span>
            </a>
          </li>
        ))}
      </ol>
    </Section>
  );
}
