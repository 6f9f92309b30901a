/** Which run is looked at: the coordinator's own log, or one that was archived after its end. */
import { useQuery } from "@tanstack/react-query";
import { runs } from "../../api/timeline";
import { goLive, openRun, useDemo, useRun } from "../../state/cluster";
import { Choice } from "../../ui/controls";

export function RunChoice() {
  const run = useRun();
  const demo = useDemo();
  const { data } = useQuery({ queryKey: ["runs"], queryFn: ({ signal }) => runs(signal), retry: false });
  const kept = data?.items ?? [];
  if (demo || (kept.length === 0 && !run)) return null;
  const named = kept.map(({ name, tasks }) => [name, tasks.join(", ") || name] as const);
  const choose = (name: string) => {
    const chosen = kept.find((each) => each.name === name);
    if (chosen) openRun(name, chosen.to_ms);
    else goLive();
  };
  return <Choice label="Run" value={run} onChange={choose} options={[["", "the log"], ...named]} />;
}
