/** The colour of a worker's cell in the heatmap: by state, GPU use, step lag or time since the last heartbeat. */
import type { Worker } from "../../api/types";
import type { Cell } from "../../draw/heatmap";
import { lookOf } from "../../ui/state-mark";

export const BY = { state: "State", gpu: "GPU", lag: "Step lag", beat: "Heartbeat" } as const;
export type By = keyof typeof BY;

const OVERDUE_MS = 30_000;
const STEPS = 8;

/** The mean GPU use of a worker in percent; null if it has no GPU or did not report one. */
export function gpuUse(worker: Worker): number | null {
  const used = (worker.resources?.gpu_metrics ?? []).flatMap((card) => card.utilization_percent ?? []);
  return used.length === 0 ? null : used.reduce((sum, percent) => sum + percent, 0) / used.length;
}

/** The furthest step of each task. */
export function furthestSteps(workers: readonly Worker[]): Map<string, number> {
  const furthest = new Map<string, number>();
  for (const { current_task, current_step } of workers) {
    furthest.set(current_task, Math.max(furthest.get(current_task) ?? 0, current_step));
  }
  return furthest;
}

/** Rounded, so that a cell is only drawn again when the difference is visible. */
const rounded = (share: number) => Math.round(Math.min(Math.max(share, 0), 1) * STEPS) / STEPS;

function look(worker: Worker, by: By, furthest: Map<string, number>, now: number) {
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
    const behind = (furthest.get(worker.current_task) ?? 0) - worker.current_step;
    const share = behind <= 0 ? 0 : Math.log2(1 + behind) / 7;
    return { colour: "recovering", strength: rounded(share) };
  }
  return { colour: "failed", strength: rounded((now - worker.last_heartbeat) / OVERDUE_MS) };
}

export function cellsOf(workers: readonly Worker[], by: By, now: number): Cell[] {
  const furthest = furthestSteps(workers);
  return workers.map((worker) => ({
    key: worker.id,
    group: worker.hostname || worker.ip,
    ...look(worker, by, furthest, now),
  }));
}

/** The meaning of a weak and of a strong colour. */
export const LEGEND: Record<Exclude<By, "state">, readonly [weak: string, strong: string]> = {
  gpu: ["GPU idle", "busy"],
  lag: ["no lag", "128 steps behind"],
  beat: ["heartbeat now", "30 s ago"],
};
