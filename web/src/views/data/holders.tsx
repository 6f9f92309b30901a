/** How many shards each worker owns, and its step; pointing at a worker marks its shards on the map. */
import { useMemo } from "react";
import type { Shard, Worker } from "../../api/types";
import { count } from "../../lib/format";
import { byName } from "../../lib/text";
import { useCluster } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Meter } from "../../ui/marks";
import { Section } from "../../ui/page";

interface Holder {
  name: string;
  held: number;
  worker: Worker | undefined;
}

export function holdersOf(shards: readonly Shard[], workers: ReadonlyMap<string, Worker>): Holder[] {
  const held = new Map<string, number>();
  for (const { worker_id } of shards) {
    if (worker_id) held.set(worker_id, (held.get(worker_id) ?? 0) + 1);
  }
  return [...held]
    .map(([name, number]) => ({ name, held: number, worker: workers.get(name) }))
    .toSorted((a, b) => byName(a.name, b.name));
}

export function Holders({ shards, task, holder, onHolder }: {
  shards: readonly Shard[];
  task: string;
  holder: string;
  onHolder: (name: string) => void;
}) {
  const { cluster } = useCluster();
  const holders = useMemo(() => holdersOf(shards, cluster?.workers ?? new Map()), [shards, cluster?.workers]);
  const most = Math.max(1, ...holders.map(({ held }) => held));
  return (
    <Section title="Shards by worker" aside={task}>
      {holders.length === 0 && <p className="text-faint">No worker owns a shard now.</p>}
      <ul className="max-h-80 overflow-auto" onPointerLeave={() => onHolder("")}>
        {holders.map(({ name, held, worker }) => (
          <li
            key={name}
            onPointerEnter={() => onHolder(name)}
            className={`grid grid-cols-[minmax(0,1fr)_9rem_5rem_6rem] items-center max-sm:grid-cols-[minmax(0,1fr)_6rem_6rem] gap-4 border-b border-line/60 py-1 ${name === holder ? "bg-hover" : ""}`}
          >
            <a href={hrefTo(["workers", name])} className="truncate hover:underline">{name}</a>
            <Meter share={held / most} label={count(held)} />
            <span className="text-right text-dim max-sm:hidden">epoch {count(worker?.current_epoch)}</span>
            <span className="text-right text-dim">step {count(worker?.current_step)}</span>
          </li>
        ))}
      </ul>
    </Section>
  );
}
