/** A story: what happened to one thing, in order, across nodes. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { events } from "../../api/timeline";
import { clock } from "../../lib/format";
import { visible } from "../../lib/text";
import { momentText, useCursor } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Loading, PastFault } from "../../ui/empty";

const LIMIT = 500;
const REFRESH_MS = 4000;

/** Kinds that make a story; steps, arrivals and parts are too many for one. */
const KINDS = [
  "TaskSubmitted", "TaskPlaced", "TaskStateChanged", "GenerationChanged", "RecoveryChosen", "RolledBack",
  "WorkerRegistered", "WorkerStateChanged", "WorkerLost", "WorkerReturned", "WorkerFenced", "WorkerExited",
  "CheckpointCommitted", "CheckpointFailed", "AssignmentChanged", "BarrierFailed", "DatasetAttached",
].join(",");

/** What the coordinator recorded of a worker or a task, newest first. */
export function StoryList(query: { task: string } | { subject: string }) {
  const cursor = useCursor();
  const until = cursor === null ? {} : { to_ms: cursor + 1 };
  const { data, error, isPending } = useQuery({
    queryKey: ["story", query, cursor],
    queryFn: ({ signal }) => events({ ...query, ...until, kind: KINDS, node: "coordinator", limit: LIMIT }, signal),
    refetchInterval: ({ state }) => (state.error || cursor !== null ? false : REFRESH_MS),
    placeholderData: keepPreviousData,
    retry: false,
  });
  if (error) return <PastFault error={error} />;
  if (isPending) return <Loading />;
  return (
    // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex
    <ol tabIndex={0} className="max-h-96 overflow-auto">
      {data.items.toReversed().map(({ ref, at_ms, kind: what, summary }) => (
        <li key={ref} className="flex gap-3 py-0.5">
          <a
            href={hrefTo(["timeline"], { event: ref, t: momentText(at_ms) })}
            className="text-faint hover:underline"
          >
            <time>{clock(at_ms, true)}</time>
          </a>
          <span className="min-w-0 truncate" title={what}>
            {visible(summary)}
          </span>
        </li>
      ))}
    </ol>
  );
}
