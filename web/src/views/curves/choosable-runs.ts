/** The runs that a comparison can add: tasks of the coordinator's own log, then those of archived runs. */
import { useQuery } from "@tanstack/react-query";
import { archivedRuns } from "../../api/timeline";
import { useLive } from "../../state/cluster";
import { keyOf, type PinnedRun } from "./pinned-runs";

export function useChoosableRuns(pinned: readonly PinnedRun[]): PinnedRun[] {
  const { cluster } = useLive();
  const { data } = useQuery({ queryKey: ["runs"], queryFn: ({ signal }) => archivedRuns(signal), retry: false });
  const known = [...(cluster?.tasks.values() ?? [])].toSorted((a, b) => b.submitted_at - a.submitted_at);
  const here = new Set(known.map(({ id }) => id));
  const archived = (data?.items ?? []).flatMap(({ name, tasks }) => tasks.filter((task) => !here.has(task)).map((task) => ({ task, run: name })));
  const chosen = new Set(pinned.map(keyOf));
  return [...known.map(({ id }) => ({ task: id, run: "" })), ...archived].filter((run) => !chosen.has(keyOf(run)));
}
