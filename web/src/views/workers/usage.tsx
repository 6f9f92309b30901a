/** What a worker uses: what it recorded of the minutes before, then a sample at each of its beats. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { usage, type UsageThen } from "../../api/timeline";
import type { Worker } from "../../api/types";
import { bytes, figure, percent } from "../../lib/format";
import { useCursor } from "../../state/cluster";
import { Chart, type Line } from "../../ui/chart";
import { gpuUse } from "./cells";

const KEPT = 900;
const MB = 1e6;

interface Beats {
  at: number[];
  cpu: (number | null)[];
  gpu: (number | null)[];
  memory: (number | null)[];
  step: (number | null)[];
}

const NONE: Beats = { at: [], cpu: [], gpu: [], memory: [], step: [] };

/** The beats with one more; the same beat again changes nothing. */
export function beatsWith(before: Beats, worker: Worker): Beats {
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

/** What was recorded, followed by the beats that came after it. */
export function joined(told: UsageThen | undefined, beats: Beats): Beats {
  if (!told) return beats;
  const newest = told.at[told.at.length - 1] ?? 0;
  const first = beats.at.findIndex((at) => at > newest);
  const after = <Value,>(values: Value[]) => (first < 0 ? [] : values.slice(first));
  return {
    at: [...told.at, ...after(beats.at)],
    cpu: [...told.cpu_percent, ...after(beats.cpu)],
    gpu: [...told.gpu_percent, ...after(beats.gpu)],
    memory: [...told.memory_used_bytes.map((used) => (used === null ? null : used / MB)), ...after(beats.memory)],
    step: [...told.step, ...after(beats.step)],
  };
}

/** Up to now, or up to the moment that is shown. */
function useBeats(worker: Worker): Beats {
  const cursor = useCursor();
  const [beats, setBeats] = useState(NONE);
  const { data } = useQuery({
    queryKey: ["usage", worker.id, worker.incarnation, cursor],
    queryFn: ({ signal }) => usage(worker.id, cursor, signal),
    staleTime: Infinity,
    placeholderData: keepPreviousData,
    retry: false,
  });
  const now = cursor === null ? beatsWith(beats, worker) : NONE;
  if (now.at.length !== beats.at.length || now.at[now.at.length - 1] !== beats.at[beats.at.length - 1]) setBeats(now);
  return joined(data, now);
}

export function Usage({ worker }: { worker: Worker }) {
  const beats = useBeats(worker);
  const all: [title: string, value: string, line: Line, least: number][] = [
    ["CPU, %", percent(worker.resources?.cpu_percent), { values: beats.cpu, colour: "accent" }, 100],
    ["GPU, %", percent(gpuUse(worker)), { values: beats.gpu, colour: "active" }, 100],
    ["Memory, MB", bytes(worker.resources?.memory_used_bytes), { values: beats.memory, colour: "saving" }, 1],
    ["Step", figure(worker.current_step), { values: beats.step, colour: "dim" }, 1],
  ];
  const shown = all.filter(([, , line]) => line.colour !== "active" || gpuUse(worker) !== null);
  return (
    <section aria-label="Use in the last minutes" className="mt-8 grid grid-cols-4 gap-8 max-lg:grid-cols-2 max-sm:grid-cols-1">
      {shown.map(([title, value, line, least]) => (
        <div key={title} className="min-w-0">
          <h2 className="flex justify-between text-s text-dim">
            {title} <span className="text-text">{value}</span>
          </h2>
          <Chart label={`${title}, now ${value}`} at={beats.at} lines={[line]} least={least} height={96} />
        </div>
      ))}
    </section>
  );
}
