import { describe, expect, it } from "vitest";
import { defaultSpan, following, lastActivity, loadedSpan, rounded, spanFrom } from "./visible-span";

describe("the timeline's window", () => {
  const bounds = { from: 0, to: 3_600_000 };
  it("shows the last minutes, or the minutes around the cursor", () => {
    expect(defaultSpan(bounds, null, 3_590_000)).toEqual({ from: 3_300_000, to: 3_600_000 });
    expect(defaultSpan(bounds, 1_000_000, 3_590_000)).toEqual({ from: 850_000, to: 1_150_000 });
  });
  it("shows the last activity when no task runs", () => {
    expect(defaultSpan(bounds, null, 2_000_000)).toEqual({ from: 1_850_000, to: 2_150_000 });
    expect([lastActivity([5, 7, 6], 9), lastActivity([5, null], 9), lastActivity([], 9)]).toEqual([7, 9, 9]);
  });
  it("ignores an invalid span in the address", () => {
    expect(spanFrom("1", "5")).toEqual({ from: 1, to: 5 });
    expect([spanFrom("5", "1"), spanFrom("", ""), spanFrom("x", "2")]).toEqual([null, null, null]);
  });
  it("starts the list of events at the cursor", () => {
    const seen = { from: 0, to: 100 };
    expect(following(seen, 40)).toEqual({ from: 39, to: 100 });
    expect([following(seen, null), following(seen, 200)]).toEqual([seen, seen]);
  });
  it("loads at least the visible span, and the same after a small move", () => {
    const loaded = loadedSpan({ from: 1000, to: 1900 });
    expect(loaded.from).toBeLessThanOrEqual(1000);
    expect(loaded.to).toBeGreaterThanOrEqual(1900);
    expect(loadedSpan({ from: 990, to: 1890 })).toEqual(loaded);
    expect(rounded({ from: 1001, to: 4201 })).toEqual(rounded({ from: 1050, to: 4250 }));
  });
});
