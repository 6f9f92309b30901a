/** What a worker's cell shows: its state, how busy its cards are, how far behind or silent it is. */
import type { Worker } from "../../api/types";
import type { Cell } from "../../draw/heatmap";
import { lookOf } from "../../ui/marks";

export const BY = { state: "State", gpu: "GPU", lag: "Step lag", beat: "Heartbeat" } as const;
export type By = keyof typeof BY;

const SILENT_MS = 30_000;
const STEPS = 8;

/** The mean use of a worker's cards in percent; null if it has none or has not told. */
export function gpuUse(worker: Worker): number | null {
  const cards = worker.resources?.gpu_metrics ?? [];
  if (cards.length === 0) return null;
  return cards.reduce((sum, card) => sum + card.utilization_percent, 0) / cards.length;
}

/** The furthest step of each task. */
export function frontOf(workers: readonly Worker[]): Map<string, number> {
  const front = new Map<string, number>();
  for (const { current_task, current_step } of workers) {
    front.set(current_task, Math.max(front.get(current_task) ?? 0, current_step));
  }
  return front;
}

/** Rounded, so that a cell is drawn anew only when the difference can be seen. */
const rounded = (share: number) => Math.round(Math.min(Math.max(share, 0), 1) * STEPS) / STEPS;

function look(worker: Worker, by: By, front: Map<string, number>, now: number) {
  if (by === "state" || worker.status === "failed") {
    return { colour: lookOf(worker.status).colour, strength: worker.status === "idle" ? 0.4 : 1 };
  }
  if (by === "gpu") {
    const use = gpuUse(worker);
    return use === null
      ? { colour: "idle", strength: 0 }
      : { colour: "active", strength: rounded(use / 100) };
  }
  if (by === "lag") {
    const behind = (front.get(worker.current_task) ?? 0) - worker.current_step;
    const share = behind <= 0 ? 0 : Math.log2(1 + behind) / 7;
    return { colour: "recovering", strength: rounded(share) };
  }
  return { colour: "failed", strength: rounded((now - worker.last_heartbeat) / SILENT_MS) };
}

export function cellsOf(workers: readonly Worker[], by: By, now: number): Cell[] {
  const front = frontOf(workers);
  return workers.map((worker) => ({
    key: worker.id,
    group: worker.hostname || worker.ip,
    ...look(worker, by, front, now),
  }));
}

/** What a strong and a weak cell mean. */
export const LEGEND: Record<Exclude<By, "state">, readonly [weak: string, strong: string]> = {
  gpu: ["GPU idle", "busy"],
  lag: ["at the front", "128 steps behind"],
  beat: ["just heard", "silent for 30 s"],
};
