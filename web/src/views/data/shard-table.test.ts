import { describe, expect, it } from "vitest";
import { pageStart, rangeOf } from "./shard-table";

describe("shards", () => {
  it("show the first and the last sample", () => {
    expect(rangeOf({ start_index: 0, end_index: 96 })).toBe("0 – 95");
    expect(rangeOf({ start_index: 7, end_index: 8 })).toBe("7");
    expect(rangeOf({ start_index: null, end_index: null })).toBe("not recorded");
  });
  it("are on pages that start at multiples of the page size", () => {
    expect([0, 49, 50, 1e9, -3, NaN].map((shard) => pageStart(shard, 120))).toEqual([0, 0, 50, 100, 0, 0]);
  });
});
