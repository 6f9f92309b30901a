import { describe, expect, it } from "vitest";
import { pan, ticks, toMoment, toPixel, within, zoom } from "./scale";

const bounds = { from: 0, to: 100_000 };

describe("a time span", () => {
  it("converts moments to pixels and back", () => {
    const span = { from: 1000, to: 3000 };
    expect(toPixel(span, 400, 2000)).toBe(200);
    expect(toMoment(span, 400, 200)).toBe(2000);
  });
  it("zooms around a moment that keeps its place", () => {
    const span = { from: 10_000, to: 20_000 };
    const near = zoom(span, 0.5, 12_000, bounds);
    expect(near).toEqual({ from: 11_000, to: 16_000 });
    expect(toPixel(near, 100, 12_000)).toBe(toPixel(span, 100, 12_000));
  });
  it("zooms no further than the bounds and a millisecond", () => {
    expect(zoom({ from: 0, to: 10 }, 1e9, 5, bounds)).toEqual(bounds);
    const close = zoom({ from: 10, to: 12 }, 1e-9, 11, bounds);
    expect(close.to - close.from).toBeCloseTo(1);
  });
  it("pans to the bounds and no further", () => {
    expect(pan({ from: 0, to: 100 }, -1, bounds)).toEqual({ from: 0, to: 100 });
    expect(within({ from: 99_950, to: 100_050 }, bounds)).toEqual({ from: 99_900, to: 100_000 });
  });
  it("puts ticks at round moments", () => {
    const { step, at } = ticks({ from: 500, to: 60_500 }, 600);
    expect(step).toBe(10_000);
    expect(at).toEqual([10_000, 20_000, 30_000, 40_000, 50_000, 60_000]);
  });
});
