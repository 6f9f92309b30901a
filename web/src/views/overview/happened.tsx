/** The newest facts that people care about. */
import { useQuery } from "@tanstack/react-query";
import { list } from "../../api/client";
import type { Fact } from "../../api/types";
import { clock } from "../../lib/format";
import { Section } from "../../ui/page";

const KINDS = [
  "WorkerLost", "WorkerRegistered", "GenerationChanged", "TaskStateChanged", "CheckpointCommitted",
  "CheckpointFailed", "RecoveryChosen", "RolledBack", "AssignmentChanged", "BarrierFailed",
  "CoordinatorStarted", "AgentLost",
].join(",");
const SHOWN = 12;
const REFRESH_MS = 4000;

/** What a fact is about: the first of its fields that names something. */
export function subjectOf(fact: Fact): string {
  const { worker, checkpoint, barrier, task, agent } = fact.fields as Record<string, unknown>;
  const found = [worker, checkpoint, barrier, task, agent].find(
    (each) => typeof each === "string" && each !== "",
  );
  return typeof found === "string" ? found : "";
}

/** "WorkerLost" as "worker lost". */
export function worded(kind: string): string {
  return kind.replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase();
}

export function Happened() {
  const { data } = useQuery({
    queryKey: ["newest facts"],
    queryFn: ({ signal }) =>
      list<Fact>("/events", { newest: true, kinds: KINDS, limit: SHOWN }, signal),
    refetchInterval: REFRESH_MS,
  });
  if (!data?.items.length) return null;
  return (
    <Section title="What happened">
      <ol>
        {data.items.map((fact) => (
          <li key={fact.id} className="flex gap-3 py-0.5" title={JSON.stringify(fact.fields)}>
            <time className="text-faint">{clock(fact.time)}</time>
            <span className="truncate">
              {worded(fact.kind)} <span className="text-dim">{subjectOf(fact)}</span>
            </span>
          </li>
        ))}
      </ol>
    </Section>
  );
}
