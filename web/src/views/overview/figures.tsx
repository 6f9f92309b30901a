/** Five metrics with charts of the last minutes; one crosshair for all of them. */
import { useState } from "react";
import type { History, Metrics } from "../../api/types";
import { clock, count, figure, UNRECORDED } from "../../lib/format";
import { useCursor, useDemo } from "../../state/cluster";
import { useHistory } from "../../state/metrics";
import { simulatedMetrics } from "../../state/simulated";
import { Chart } from "../../ui/chart";

interface Shown {
  name: Exclude<keyof Metrics, "total_workers">;
  title: string;
  unit: string;
  colour: string;
  least: number;
}

const SHOWN: readonly Shown[] = [
  { name: "active_workers", title: "Active workers", unit: "", colour: "active", least: 4 },
  { name: "checkpoint_throughput", title: "Checkpoint throughput", unit: "MB/s", colour: "saving", least: 1 },
  { name: "coordinator_rps", title: "Coordinator requests", unit: "/s", colour: "accent", least: 10 },
  { name: "barrier_latency_p99", title: "Barrier latency, p99", unit: "ms", colour: "recovering", least: 10 },
  { name: "shard_assignment_time", title: "Shard assignment", unit: "ms", colour: "dim", least: 1 },
];

/** Metrics that the coordinator measures but does not record. */
const UNRECORDED_METRICS: ReadonlySet<string> = new Set(["coordinator_rps", "shard_assignment_time"]);

export function Figures({ metrics }: { metrics: Metrics | null }) {
  const history = useHistory();
  const [point, setPoint] = useState<number | null>(null);
  return (
    <section
      aria-label="Figures"
      className="grid grid-cols-5 gap-x-8 gap-y-6 max-xl:grid-cols-3 max-md:grid-cols-2 max-sm:gap-x-4"
    >
      {SHOWN.map((shown) => (
        <Figure key={shown.name} {...{ shown, metrics, history, point }} onPoint={setPoint} />
      ))}
    </section>
  );
}

function Figure({ shown, metrics, history, point, onPoint }: {
  shown: Shown;
  metrics: Metrics | null;
  history: History;
  point: number | null;
  onPoint: (index: number | null) => void;
}) {
  const { name, title, unit, colour, least } = shown;
  const values = history[name];
  const at = point === null ? undefined : history.at[point];
  const cursor = useCursor();
  const demo = useDemo() === "recorded";
  const unrecorded = cursor !== null && !demo && UNRECORDED_METRICS.has(name);
  const now = demo && metrics && cursor !== null ? simulatedMetrics(metrics, cursor) : metrics;
  const value = unrecorded ? null : point === null ? now?.[name] : values[point];
  const text = unrecorded ? UNRECORDED : name === "active_workers" ? count(value) : figure(value);
  const bare = unrecorded || value === null || value === undefined;
  return (
    <div className="min-w-0">
      <div className="flex items-baseline justify-between text-s">
        <h2 className="truncate text-dim">{title}</h2>
        {at !== undefined && <span className="text-faint">{clock(at)}</span>}
      </div>
      <p className={unrecorded ? "h-8 text-l leading-8 text-faint" : "text-xl font-medium tracking-tight"}>
        {text}
        <span className="ml-1 text-m font-normal text-faint">
          {name === "active_workers" && metrics ? `of ${count(metrics.total_workers)}` : bare ? "" : unit}
        </span>
      </p>
      <Chart
        label={`${title} over the last minutes, now ${text} ${bare ? "" : unit}`}
        at={history.at}
        lines={[{ values, colour }]}
        least={least}
        {...(cursor !== null && { empty: unrecorded ? UNRECORDED : "nothing measured in these minutes" })}
        onPoint={onPoint}
      />
    </div>
  );
}
