import { expect, it } from "vitest";
import type { Curve, CurveSettings } from "../../api/timeline";
import { comparisonRows } from "./comparison-rows";

const settings = (config: CurveSettings["config"], given: Partial<CurveSettings> = {}): CurveSettings =>
  ({ task: "t", name: "train", parent: "", forked_step: null, submitted_ms: null, state: "completed", config, logged: {}, parameters: {}, changes: [], ...given });
const curve = (name: string, last: number | null, last_step = 9): Curve =>
  ({ name, source: "logged", unit: "", points: 10, first_step: 0, last_step, last, min: last && last - 1, max: last, not_finite: 0, workers: 1 });

const rate = (last_step: number): Curve => ({ ...curve("steps/s", 5, last_step), source: "derived" });

it("has a row for each setting and metric, and knows which of them differ", () => {
  const rows = comparisonRows([
    { settings: settings({ lr: 0.1, seed: 7 }), curves: [curve("loss", 0.5), curve("lr", 0.1), rate(9)] },
    { settings: settings({ lr: 0.2, seed: 7 }, { parent: "a", forked_step: 40 }), curves: [curve("loss", 0.25, 100), rate(99)] },
  ]);
  const differing = rows.filter(({ differs }) => differs).map(({ group, name, values }) => [group, name, ...values]);
  expect(differing).toEqual([
    ["Run", "fork of", "–", "a at step 40"],
    ["Run", "steps", "10", "100"],
    ["Config", "lr", "0.1", "0.2"],
    ["Last values", "loss", "0.5 (min -0.5, max 0.5)", "0.25 (min -0.75, max 0.25)"],
    ["Last values", "lr", "0.1 (min -0.9, max 0.1)", null],
  ]);
  expect(rows.find(({ name }) => name === "seed")).toMatchObject({ values: ["7", "7"], differs: false });
});

it("says when a setting changed and that a last value is not finite", () => {
  const changed = settings({ lr: 0.1 }, { changes: [{ at_ms: 0, step: 20, name: "lr", before: "0.1", after: "0.01" }] });
  const rows = comparisonRows([{ settings: changed, curves: [{ ...curve("loss", null), min: 1, max: 2 }] }]);
  expect(rows.find(({ name }) => name === "lr")!.values).toEqual(["0.1; 0.1 until step 20, then 0.01"]);
  expect(rows.find(({ name }) => name === "loss")!.values).toEqual(["not finite (min 1, max 2)"]);
});

it("says that a run does not set a key of the config of another", () => {
  const rows = comparisonRows([{ settings: settings({ lr: 0.1 }), curves: [] }, { settings: settings({ seed: 7 }), curves: [] }]);
  expect(rows.find(({ name }) => name === "lr")!.values).toEqual(["0.1", "not set"]);
});

it("has values that are still loaded as not recorded, not as zero", () => {
  expect(comparisonRows([{ settings: undefined, curves: undefined }]).flatMap(({ values }) => values)).toEqual([null, null, null, null, null]);
});
