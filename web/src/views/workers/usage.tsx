/** What a worker used while this page was open: a sample at each of its beats. */
import { useState } from "react";
import type { Worker } from "../../api/types";
import { bytes, figure, percent } from "../../lib/format";
import { Chart, type Line } from "../../ui/chart";
import { gpuUse } from "./cells";

const KEPT = 600;

interface Beats {
  at: number[];
  cpu: (number | null)[];
  gpu: (number | null)[];
  memory: (number | null)[];
  step: number[];
}

const NONE: Beats = { at: [], cpu: [], gpu: [], memory: [], step: [] };

/** The beats with one more; the same beat again changes nothing. */
export function beatsWith(before: Beats, worker: Worker): Beats {
  if (before.at[before.at.length - 1] === worker.last_heartbeat) return before;
  const add = <Value,>(values: Value[], value: Value) => [...values.slice(1 - KEPT), value];
  return {
    at: add(before.at, worker.last_heartbeat),
    cpu: add(before.cpu, worker.resources?.cpu_percent ?? null),
    gpu: add(before.gpu, gpuUse(worker)),
    memory: add(before.memory, worker.resources ? worker.resources.memory_used_bytes / 1e6 : null),
    step: add(before.step, worker.current_step),
  };
}

export function Usage({ worker }: { worker: Worker }) {
  const [beats, setBeats] = useState(NONE);
  const now = beatsWith(beats, worker);
  if (now !== beats) setBeats(now);
  const all: [title: string, value: string, line: Line, least: number][] = [
    ["CPU, %", percent(worker.resources?.cpu_percent), { values: beats.cpu, colour: "accent" }, 100],
    ["GPU, %", percent(gpuUse(worker)), { values: beats.gpu, colour: "active" }, 100],
    ["Memory, MB", bytes(worker.resources?.memory_used_bytes), { values: beats.memory, colour: "saving" }, 1],
    ["Step", figure(worker.current_step), { values: beats.step, colour: "dim" }, 1],
  ];
  const shown = all.filter(([, , line]) => line.colour !== "active" || gpuUse(worker) !== null);
  return (
    <section aria-label="Use since this page was opened" className="mt-8 grid grid-cols-4 gap-8 max-lg:grid-cols-2 max-sm:grid-cols-1">
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
