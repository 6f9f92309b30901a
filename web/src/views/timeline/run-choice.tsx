/** The choice of a run: the coordinator's own log, or an archived run. */
import { useQuery } from "@tanstack/react-query";
import { archivedRuns } from "../../api/timeline";
import { goLive, openRun, useDemo, useRun } from "../../state/cluster";
import { Choice } from "../../ui/controls";

export function RunChoice() {
  const run = useRun();
  const demo = useDemo();
  const { data } = useQuery({ queryKey: ["runs"], queryFn: ({ signal }) => archivedRuns(signal), retry: false });
  const archived = data?.items ?? [];
  if (demo || (archived.length === 0 && !run)) return null;
  const named = archived.map(({ name, tasks }) => [name, tasks.join(", ") || name] as const);
  const choose = (name: string) => {
    const chosen = archived.find((each) => each.name === name);
    if (chosen) openRun(name, chosen.to_ms);
    else goLive();
  };
  return <Choice label="Run" value={run} onChange={choose} options={[["", "current log"], ...named]} />;
}
