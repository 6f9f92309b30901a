import { describe, expect, it } from "vitest";
import { belowLog, extended, inOrder, markerGroups, markerPlace, momentOf, nearest, NO_POINTS, placeOf, smoothed, windowFrom, windowText, within, yRange, type Points } from "./curves";

/** Points at steps from `first` on, one second apart. */
function points(mean: (number | null)[], first = 0): Points {
  const step = mean.map((_, index) => first + index);
  return { x: step, mean, min: mean, max: mean, step, time_ms: step.map((each) => each * 1000), not_finite: [] };
}

describe("smoothing", () => {
  it("leaves a constant at its value from the first point on", () => {
    expect(smoothed([3, 3, 3], 0.9).map((value) => value?.toFixed(9))).toEqual(Array(3).fill("3.000000000"));
  });
  it("is the exponential moving average without its start", () => {
    // 0.5 * 4 / 0.5; (0.25 * 4 + 0.5 * 2) / 0.75
    expect(smoothed([4, 2], 0.5)).toEqual([4, 2 / 0.75]);
  });
  it("keeps gaps and does not count them as zero", () => {
    expect(smoothed([2, null, 2], 0.5)).toEqual([2, null, 2]);
  });
  it("returns the values themselves without a weight", () => {
    const values = [1, 2];
    expect(smoothed(values, 0)).toBe(values);
  });
});

describe("the y range", () => {
  it("covers the values of the window with a margin", () => {
    const [low, high] = yRange([points([100, 1, 2, 100])], { from: 1, to: 2 }, false)!;
    expect([low < 1 && low > 0.9, high > 2 && high < 2.1]).toEqual([true, true]);
  });
  it("keeps a spike that only the maximum of a bucket has", () => {
    const spike = { ...points([1, 1, 1]), max: [1, 50, 1] };
    expect(yRange([spike], null, false)![1]).toBeGreaterThan(50);
  });
  it("has a height for a constant, also for zero", () => {
    expect(yRange([points([0, 0])], null, false)).toEqual([-1, 1]);
  });
  it("leaves values that a logarithmic scale cannot show to their marks", () => {
    const curve = points([-1, 0, 0.01, 10]);
    expect(yRange([curve], null, true)![0]).toBeGreaterThan(0);
    expect(belowLog(curve)).toEqual([0, 1]);
    expect(yRange([points([-1, 0])], null, true)).toBeNull();
  });
});

describe("moments and places", () => {
  const curve = points([5, 4, 3, 2], 10);
  it("finds the point nearest to a place", () => {
    expect([9, 10.4, 10.6, 99].map((at) => nearest(curve.x, at))).toEqual([0, 0, 1, 3]);
    expect(nearest([], 1)).toBe(-1);
  });
  it("has the moment of each point, and the place of each moment between points", () => {
    expect(momentOf(curve, 12.2)).toBe(12_000);
    expect(placeOf(curve, 12_500)).toBe(12.5);
    expect(momentOf(curve, placeOf(curve, 13_000)!)).toBe(13_000);
  });
  it("has no place for a moment outside of the points, but shows an event at their end", () => {
    const placed = (at_ms: number, windowed = false) => markerPlace(curve, { at_ms, step: null }, false, windowed);
    expect([placed(9999), placed(12_500), placed(99_000), markerPlace(NO_POINTS, { at_ms: 1, step: 1 }, false, false)]).toEqual([10, 12.5, 13, null]);
    expect([placed(9999, true), placed(12_500, true), placed(13_001, true)]).toEqual([null, 12.5, null]);
    expect([placeOf(curve, 9999), placeOf(curve, 13_001), placeOf(NO_POINTS, 1)]).toEqual([null, null, null]);
  });
});

it("replaces overlapping points by the newer ones", () => {
  const joined = extended({ ...points([1, 2, 3]), not_finite: [0.5, 2] }, { ...points([9, 8], 2), not_finite: [3] });
  expect([joined.x, joined.mean, joined.not_finite]).toEqual([[0, 1, 2, 3], [1, 2, 9, 8], [0.5, 3]]);
  const before = points([1]);
  expect(extended(before, NO_POINTS)).toBe(before);
});

it("joins newer points into buckets like those before them, and keeps a spike and a missing value", () => {
  const before = { ...points([5, 4, 3]), x: [9, 19, 29], exact: false };
  const finer = { ...points([1, 3, 100, null, 2], 0), x: [30, 31, 38, 41, 42] };
  const both = extended(before, finer);
  expect([both.x, both.mean, both.max]).toEqual([[9, 19, 29, 38, 42], [5, 4, 3, 104 / 3, null], [5, 4, 3, 100, 2]]);
});

it("cuts points to a window, with the marks of values that are not finite", () => {
  const cut = within({ ...points([1, 2, 3, 4]), not_finite: [0, 2.5, 9] }, { from: 0.5, to: 2.5 });
  expect([cut.x, cut.mean, cut.time_ms, cut.not_finite]).toEqual([[1, 2], [2, 3], [1000, 2000], [2.5]]);
});

describe("markers", () => {
  const marker = (x: number, text: string) => ({ x, curve: 0, marker: { at_ms: 0, step: null, kind: "lost", text, ref: "" } });
  it("are placed by their step, because an alert is raised after the step that it is about, and by time on an axis of time", () => {
    const samples = { ...points([5, 4, 9, 2], 10), x: [100, 110, 120, 130] };
    const alert = { at_ms: 13_000, step: 12 };
    expect([markerPlace(samples, alert, false, false), markerPlace(samples, alert, true, false)]).toEqual([120, 130]);
    expect([markerPlace(samples, { ...alert, step: 99 }, false, false), markerPlace(samples, { ...alert, step: 99 }, false, true)]).toEqual([130, null]);
  });
  it("are drawn as one where they would overlap, and keep their order", () => {
    const groups = markerGroups([marker(50, "c"), marker(10, "a"), marker(11, "b")], { from: 0, to: 100 }, 1000);
    expect(groups.map(({ px, placed }) => [px, placed.map((each) => each.marker.text)])).toEqual([[100, ["a", "b"]], [500, ["c"]]]);
  });
  it("are left out beside the window", () => {
    expect(markerGroups([marker(5, "a"), marker(95, "b")], { from: 10, to: 90 }, 100)).toEqual([]);
  });
});

it("orders charts: the loss, other losses, logged by name, rates, derived", () => {
  const curve = (name: string, source: "logged" | "derived" = "logged") => ({ name, source });
  const names = inOrder([curve("step_s", "derived"), curve("data_s", "derived"), curve("steps/s", "derived"), curve("lr"), curve("layer 10"), curve("layer 9"), curve("val_loss"), curve("loss")]).map(({ name }) => name);
  expect(names).toEqual(["loss", "val_loss", "layer 9", "layer 10", "lr", "steps/s", "step_s", "data_s"]);
});

it("keeps a window in the address", () => {
  expect(windowFrom(windowText({ from: 0.5, to: 1_750_000_200_000 }))).toEqual({ from: 0.5, to: 1_750_000_200_000 });
  expect([windowFrom(""), windowFrom("3"), windowFrom("9..3"), windowFrom("a..b"), windowText(null)]).toEqual([null, null, null, null, ""]);
});
