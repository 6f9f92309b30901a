import { describe, expect, it } from "vitest";
import type { Fact } from "../../api/types";
import { median, stageOf, stragglers } from "./stragglers";

describe("stragglers", () => {
  const arrived = (round: number, worker: string, time: number) =>
    ({ kind: "BarrierArrived", time, fields: { task: "t", barrier: `step-${round}`, round: 1, worker } }) as unknown as Fact;

  it("groups barriers that differ only by a number", () => {
    expect(["step-420", "epoch", "7"].map(stageOf)).toEqual(["step", "epoch", "7"]);
  });
  it("counts last arrivals and measures delays", () => {
    const facts = [1, 2, 3].flatMap((round) => [
      arrived(round, "quick", round * 1000),
      arrived(round, "slow", round * 1000 + 100 * round),
    ]);
    const [first, second] = stragglers(facts);
    expect(first).toEqual({ worker: "slow", barrier: "step", rounds: 3, last: 3, medianMs: 200, worstMs: 300 });
    expect(second).toMatchObject({ worker: "quick", last: 0, worstMs: 0 });
  });
  it("computes medians", () => expect([median([]), median([3]), median([4, 1])]).toEqual([0, 3, 2.5]));
});
