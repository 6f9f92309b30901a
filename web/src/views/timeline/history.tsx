/** The history of one task or worker: its important events, newest first. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { clock } from "../../lib/format";
import { visible } from "../../lib/text";
import { momentText, useCursor, useTimeline } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Loading, TimelineError } from "../../ui/placeholders";

const LIMIT = 500;
const REFRESH_MS = 4000;

/** Important kinds; steps, arrivals and parts are too many for a list. */
const KINDS = [
  "TaskSubmitted", "TaskForked", "TaskPlaced", "TaskStateChanged", "TaskContinued", "TaskPreempted", "TaskResized", "WorkersReleased", "LoopContinued", "GenerationChanged", "RecoveryChosen", "RolledBack",
  "WorkerRegistered", "WorkerLost", "WorkerReturned", "WorkerFenced", "WorkerExited",
  "CheckpointCommitted", "CheckpointFailed", "AssignmentChanged", "BarrierFailed", "DatasetAttached",
];
/** A task with a thousand workers has a thousand of these in a second. */
const WORKER_KINDS = [...KINDS, "WorkerStateChanged"];

export function HistoryList(query: { task: string } | { subject: string }) {
  const cursor = useCursor();
  const timeline = useTimeline();
  const until = cursor === null ? {} : { to_ms: cursor + 1 };
  const { data, error, isPending } = useQuery({
    queryKey: ["history", query, cursor],
    queryFn: ({ signal }) => timeline.newestEvents({ ...query, ...until, kind: ("task" in query ? KINDS : WORKER_KINDS).join(","), node: "coordinator", limit: LIMIT }, signal),
    refetchInterval: ({ state }) => (state.error || cursor !== null ? false : REFRESH_MS),
    placeholderData: keepPreviousData,
    retry: false,
  });
  if (error) return <TimelineError error={error} />;
  if (isPending) return <Loading />;
  return (
    <>
      {/* oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
      <ol tabIndex={0} className="max-h-96 overflow-auto">
        {data.map(({ ref, at_ms, kind, summary }) => (
          <li key={ref} className="flex gap-3 py-0.5">
            <a
              href={hrefTo(["timeline"], { event: ref, t: momentText(at_ms) })}
              className="text-faint hover:underline"
            >
              <time>{clock(at_ms, true)}</time>
            </a>
            <span className="min-w-0 truncate" title={kind}>
              {visible(summary)}
            </span>
          </li>
        ))}
      </ol>
      {data.length === 0 && <p className="text-faint">No events yet.</p>}
      {data.length === LIMIT && <p className="mt-1 text-s text-faint">The newest {LIMIT} events. The timeline has older ones.</p>}
    </>
  );
}
