/** A story: what happened to one thing, in order, across nodes. */
import type { UseQueryResult } from "@tanstack/react-query";
import { ApiError } from "../../api/client";
import type { Story } from "../../api/timeline";
import { clock } from "../../lib/format";
import { hrefTo } from "../../state/url";
import { Fault, Loading, NoTimeline } from "../../ui/empty";

export function StoryList({ asked }: { asked: UseQueryResult<Story> }) {
  const { data, error, isPending } = asked;
  if (error instanceof ApiError && error.status === 404) return <NoTimeline />;
  if (error) return <Fault error={error} />;
  if (isPending) return <Loading />;
  return (
    <ol className="max-h-96 overflow-auto">
      {data.entries.toReversed().map(({ ref, at_ms, kind, text }) => (
        <li key={ref} className="flex gap-3 py-0.5">
          <a
            href={hrefTo(["timeline"], { event: ref, t: String(Math.round(at_ms)) })}
            className="text-faint hover:underline"
          >
            {clock(at_ms, true)}
          </a>
          <span className="min-w-0 truncate" title={kind}>
            {text}
          </span>
        </li>
      ))}
    </ol>
  );
}
