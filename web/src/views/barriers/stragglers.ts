/** How late each worker arrives at each barrier. */
import type { Fact } from "../../api/types";

export interface Straggler {
  worker: string;
  barrier: string;
  rounds: number;
  /** In how many rounds it arrived last. */
  last: number;
  medianMs: number;
  worstMs: number;
}

interface Arrival {
  worker: string;
  at: number;
}

const text = (fact: Fact, field: string) => String((fact.fields as Record<string, unknown>)[field] ?? "");

/** The name of a barrier without its number: `step-420` and `step-450` are both `step`. */
export function stageOf(barrier: string): string {
  return barrier.replace(/[-_./#]?\d+$/, "") || barrier;
}

/** The arrivals of each round. */
function roundsOf(facts: readonly Fact[]): Map<string, { barrier: string; arrivals: Arrival[] }> {
  const found = new Map<string, { barrier: string; arrivals: Arrival[] }>();
  for (const fact of facts) {
    if (fact.kind !== "BarrierArrived") continue;
    const barrier = text(fact, "barrier");
    const key = `${text(fact, "task")}/${barrier}#${text(fact, "round")}`;
    const round = found.get(key) ?? { barrier: stageOf(barrier), arrivals: [] };
    round.arrivals.push({ worker: text(fact, "worker"), at: fact.time });
    found.set(key, round);
  }
  return found;
}

export function median(values: readonly number[]): number {
  const ordered = values.toSorted((a, b) => a - b);
  const middle = ordered.length / 2;
  if (ordered.length === 0) return 0;
  return ordered.length % 2
    ? ordered[Math.floor(middle)]!
    : (ordered[middle - 1]! + ordered[middle]!) / 2;
}

/** The delays of each worker at each barrier, the largest median first. */
export function stragglers(facts: readonly Fact[]): Straggler[] {
  const late = new Map<string, { worker: string; barrier: string; late: number[]; last: number }>();
  for (const { barrier, arrivals } of roundsOf(facts).values()) {
    if (arrivals.length < 2) continue;
    const times = arrivals.map(({ at }) => at);
    const [first, final] = [Math.min(...times), Math.max(...times)];
    for (const { worker, at } of arrivals) {
      const key = `${barrier} ${worker}`;
      const known = late.get(key) ?? { worker, barrier, late: [], last: 0 };
      known.late.push(at - first);
      if (at === final && final > first) known.last += 1;
      late.set(key, known);
    }
  }
  return [...late.values()]
    .map(({ worker, barrier, late: each, last }) => ({
      worker,
      barrier,
      last,
      rounds: each.length,
      medianMs: median(each),
      worstMs: Math.max(...each),
    }))
    .toSorted((a, b) => b.medianMs - a.medianMs || b.worstMs - a.worstMs);
}
