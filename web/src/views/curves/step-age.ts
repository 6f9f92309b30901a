/** How long a running task has made no step, so that its last speed is not taken for the present one. */
import { useQuery } from "@tanstack/react-query";
import type { Curve } from "../../api/timeline";
import type { Task } from "../../api/types";
import { duration } from "../../lib/format";
import { useClock, useCursor, useTimeline } from "../../state/cluster";

const LEAST_MS = 10_000;
const USUAL_STEPS = 5;
const STEPPING = new Set<string>(["running", "recovering"]);

/** The time since the newest step, if it is longer than steps explain; else null. */
export function overdueStepMs(stepAtMs: number, stepS: number, nowMs: number): number | null {
  const age = nowMs - stepAtMs;
  return age > Math.max(LEAST_MS, USUAL_STEPS * stepS * 1000) ? age : null;
}

/** "no step for 13 s" while a task that runs makes no step; empty otherwise. */
export function useNoStepText(task: Task, curves: readonly Curve[] | undefined): string {
  const timeline = useTimeline();
  const now = useClock();
  const live = useCursor() === null && STEPPING.has(task.status);
  const steps = curves?.find(({ name }) => name === "step_s");
  const last = steps?.last_step ?? 0;
  const { data } = useQuery({
    queryKey: ["newest step", task.id, last, steps?.points],
    queryFn: ({ signal }) => timeline.curvePoints({ task: task.id, name: ["step_s"], x: "step", points: 1, from: last }, signal),
    enabled: live && steps !== undefined,
    staleTime: Infinity,
    gcTime: 60_000,
    retry: false,
  });
  const stepAt = data?.curves[0]?.time_ms.at(-1);
  if (!live || stepAt === undefined) return "";
  const overdue = overdueStepMs(stepAt, steps?.last ?? 0, now);
  return overdue === null ? "" : `no step for ${duration(overdue)}`;
}
