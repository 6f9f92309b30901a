/** Charts of a worker's resource use: the recorded minutes, then a sample at each heartbeat. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { RecordedUsage } from "../../api/timeline";
import type { Worker } from "../../api/types";
import { bytes, figure, percent } from "../../lib/format";
import { useCursor, useTimeline } from "../../state/cluster";
import { Chart, type Line } from "../../ui/chart";
import { gpuUse } from "./worker-cells";

const KEPT = 900;
const MB = 1e6;

interface Samples {
  at: number[];
  cpu: (number | null)[];
  gpu: (number | null)[];
  memory: (number | null)[];
  step: (number | null)[];
}

const NONE: Samples = { at: [], cpu: [], gpu: [], memory: [], step: [] };

/** The samples with the newest heartbeat appended; unchanged if it is already there. */
export function samplesWith(before: Samples, worker: Worker): Samples {
  if ((before.at[before.at.length - 1] ?? 0) >= worker.last_heartbeat) return before;
  const add = <Value,>(values: Value[], value: Value) => [...values.slice(1 - KEPT), value];
  return {
    at: add(before.at, worker.last_heartbeat),
    cpu: add(before.cpu, worker.resources?.cpu_percent ?? null),
    gpu: add(before.gpu, gpuUse(worker)),
    memory: add(before.memory, worker.resources ? worker.resources.memory_used_bytes / MB : null),
    step: add(before.step, worker.current_step),
  };
}

/** The recorded samples, followed by the newer ones. */
export function joined(recorded: RecordedUsage | undefined, samples: Samples): Samples {
  if (!recorded) return samples;
  const newest = recorded.at[recorded.at.length - 1] ?? 0;
  const first = samples.at.findIndex((at) => at > newest);
  const after = <Value,>(values: Value[]) => (first < 0 ? [] : values.slice(first));
  return {
    at: [...recorded.at, ...after(samples.at)],
    cpu: [...recorded.cpu_percent, ...after(samples.cpu)],
    gpu: [...recorded.gpu_percent, ...after(samples.gpu)],
    memory: [...recorded.memory_used_bytes.map((used) => (used === null ? null : used / MB)), ...after(samples.memory)],
    step: [...recorded.step, ...after(samples.step)],
  };
}

/** The samples up to the moment that is shown. */
function useSamples(worker: Worker): Samples {
  const timeline = useTimeline();
  const cursor = useCursor();
  const [samples, setSamples] = useState(NONE);
  const { data } = useQuery({
    queryKey: ["usage", worker.id, worker.incarnation, cursor],
    queryFn: ({ signal }) => timeline.usage(worker.id, cursor, signal),
    staleTime: Infinity,
    placeholderData: keepPreviousData,
    retry: false,
  });
  const now = cursor === null ? samplesWith(samples, worker) : NONE;
  if (now.at.length !== samples.at.length || now.at[now.at.length - 1] !== samples.at[samples.at.length - 1]) setSamples(now);
  return joined(data, now);
}

export function Usage({ worker }: { worker: Worker }) {
  const samples = useSamples(worker);
  const all: [title: string, value: string, line: Line, least: number][] = [
    ["CPU, %", percent(worker.resources?.cpu_percent), { values: samples.cpu, colour: "accent" }, 100],
    ["GPU, %", percent(gpuUse(worker)), { values: samples.gpu, colour: "active" }, 100],
    ["Memory, MB", bytes(worker.resources?.memory_used_bytes), { values: samples.memory, colour: "saving" }, 1],
    ["Step", figure(worker.current_step), { values: samples.step, colour: "dim" }, 1],
  ];
  const shown = all.filter(([, , line]) => line.colour !== "active" || gpuUse(worker) !== null);
  return (
    <section aria-label="Resource use in the last minutes" className="mt-8 grid grid-cols-4 gap-8 max-lg:grid-cols-2 max-sm:grid-cols-1">
      {shown.map(([title, value, line, least]) => (
        <div key={title} className="min-w-0">
          <h2 className="flex justify-between text-s text-dim">
            {title} <span className="text-text">{value}</span>
          </h2>
          <Chart label={`${title}, now ${value}`} at={samples.at} lines={[line]} least={least} height={96} />
        </div>
      ))}
    </section>
  );
}
