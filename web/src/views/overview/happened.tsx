/** The newest facts that people care about. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { list } from "../../api/client";
import { events } from "../../api/timeline";
import type { Fact } from "../../api/types";
import { clock } from "../../lib/format";
import { useCursor } from "../../state/cluster";
import { Section } from "../../ui/page";

const KINDS = [
  "WorkerLost", "WorkerRegistered", "GenerationChanged", "TaskStateChanged", "CheckpointCommitted",
  "CheckpointFailed", "RecoveryChosen", "RolledBack", "AssignmentChanged", "BarrierFailed",
  "CoordinatorStarted", "AgentLost",
].join(",");
const SHOWN = 12;
const REFRESH_MS = 5000;
const LOOKED_BACK_MS = 600_000;

/** "WorkerLost" as "worker lost". */
export function worded(kind: string): string {
  return kind.replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase();
}

interface Told {
  ref: string;
  at: number;
  kind: string;
  about: string;
}

/** What a fact is about: the first of its fields that names something. */
export function subjectOf(fact: Fact): string {
  const { worker, checkpoint, barrier, task, agent } = fact.fields as Record<string, unknown>;
  const found = [worker, checkpoint, barrier, task, agent].find(
    (each) => typeof each === "string" && each !== "",
  );
  return typeof found === "string" ? found : "";
}

async function newest(signal: AbortSignal): Promise<Told[]> {
  const { items } = await list<Fact>("/events", { newest: true, kinds: KINDS, limit: SHOWN }, signal);
  return items.map((fact) => ({ ref: fact.id, at: fact.time, kind: fact.kind, about: subjectOf(fact) }));
}

/** The last that had happened by a moment of the past. */
async function before(cursor: number, signal: AbortSignal): Promise<Told[]> {
  const range = { from_ms: Math.max(cursor - LOOKED_BACK_MS, 0), to_ms: cursor };
  const { items } = await events({ ...range, kind: KINDS, node: "coordinator", limit: 1000 }, signal);
  return items
    .slice(-SHOWN)
    .toReversed()
    .map(({ ref, at_ms, kind, summary }) => ({ ref, at: at_ms, kind, about: summary }));
}

export function Happened() {
  const cursor = useCursor();
  const { data } = useQuery({
    queryKey: ["newest facts", cursor],
    queryFn: ({ signal }) => (cursor === null ? newest(signal) : before(cursor, signal)),
    refetchInterval: cursor === null ? REFRESH_MS : false,
    placeholderData: keepPreviousData,
    retry: false,
  });
  if (!data?.length) return null;
  return (
    <Section title="What happened">
      <ol>
        {data.map(({ ref, at, kind, about }) => (
          <li key={ref} className="flex gap-3 py-0.5" title={about}>
            <time className="text-faint">{clock(at)}</time>
            <span className="truncate">
              {worded(kind)} <span className="text-dim">{about}</span>
            </span>
          </li>
        ))}
      </ol>
    </Section>
  );
}
