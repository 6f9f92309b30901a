/** The number of shards of each worker, and its step; the shards of the worker under the pointer stand out on the map. */
import { useMemo } from "react";
import type { Shard, Worker } from "../../api/types";
import { count } from "../../lib/format";
import { byName } from "../../lib/text";
import { useCluster } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Meter } from "../../ui/state-mark";
import { Section } from "../../ui/page";

interface Owner {
  name: string;
  owned: number;
  worker: Worker | undefined;
}

export function ownersOf(shards: readonly Shard[], workers: ReadonlyMap<string, Worker>): Owner[] {
  const owned = new Map<string, number>();
  for (const { worker_id } of shards) {
    if (worker_id) owned.set(worker_id, (owned.get(worker_id) ?? 0) + 1);
  }
  return [...owned]
    .map(([name, number]) => ({ name, owned: number, worker: workers.get(name) }))
    .toSorted((a, b) => byName(a.name, b.name));
}

export function Owners({ shards, task, owner, onOwner }: {
  shards: readonly Shard[];
  task: string;
  owner: string;
  onOwner: (name: string) => void;
}) {
  const { cluster } = useCluster();
  const owners = useMemo(() => ownersOf(shards, cluster?.workers ?? new Map()), [shards, cluster?.workers]);
  const most = Math.max(1, ...owners.map(({ owned }) => owned));
  return (
    <Section title="Shards by worker" aside={task}>
      {owners.length === 0 && <p className="text-faint">No worker owns a shard.</p>}
      <ul className="max-h-80 overflow-auto" onPointerLeave={() => onOwner("")}>
        {owners.map(({ name, owned, worker }) => (
          <li
            key={name}
            onPointerEnter={() => onOwner(name)}
            className={`grid grid-cols-[minmax(0,1fr)_9rem_5rem_6rem] items-center max-sm:grid-cols-[minmax(0,1fr)_6rem_6rem] gap-4 border-b border-line/60 py-1 ${name === owner ? "bg-hover" : ""}`}
          >
            <a href={hrefTo(["workers", name])} className="truncate hover:underline">{name}</a>
            <Meter share={owned / most} label={count(owned)} />
            <span className="text-right text-dim max-sm:hidden">epoch {count(worker?.current_epoch)}</span>
            <span className="text-right text-dim">step {count(worker?.current_step)}</span>
          </li>
        ))}
      </ul>
    </Section>
  );
}
