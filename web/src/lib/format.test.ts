import { describe, expect, it } from "vitest";
import { age, bytes, clock, compact, count, duration, figure, moment, percent, plural } from "./format";

describe("numbers", () => {
  it("separates thousands and shortens millions", () => {
    expect(count(20_000)).toBe("20,000");
    expect(count(1_250_000)).toBe("1.3M");
    expect(count(null)).toBe("–");
  });
  it("shows about three digits", () => {
    expect([0, 0.004, 0.2, 5.771, 31.64, 1693, 2_500_000].map(figure)).toEqual([
      "0.00", "0.004", "0.20", "5.77", "31.6", "1,693", "2.5M",
    ]);
    expect(figure(Number.NaN)).toBe("–");
  });
  it("shortens numbers for an axis", () => {
    expect([0, 0.25, 1234.5, 20_000, 2_500_000].map(compact)).toEqual(["0", "0.25", "1230", "20K", "2.5M"]);
  });
  it("shows sizes in powers of a thousand", () => {
    expect([0, 999, 12_288, 181_000_000, 1.9e12].map(bytes)).toEqual([
      "0 B", "999 B", "12.3 KB", "181 MB", "1.9 TB",
    ]);
  });
  it("rounds percents", () => expect(percent(93.4)).toBe("93 %"));
  it("adds the plural s", () => expect([plural(1, "worker"), plural(2, "worker")]).toEqual(["1 worker", "2 workers"]));
});

describe("time", () => {
  it("shows the two largest units of a duration", () => {
    expect([0.25, 46, 1700, 42_000, 167_000, 5_400_000, 100_000_000].map(duration)).toEqual([
      "0.25 ms", "46 ms", "1.7 s", "42 s", "2 min 47 s", "1 h 30 min", "1 d 3 h",
    ]);
  });
  it("never shows a negative age", () => {
    expect(age(2000, 1000)).toBe("now");
    expect(age(1000, 6500)).toBe("5.0 s");
  });
  it("shows a time of day to the second or the millisecond", () => {
    const at = new Date(2026, 10, 16, 8, 9, 24, 644).getTime();
    expect(clock(at)).toBe("08:09:24");
    expect(clock(at, true)).toBe("08:09:24.644");
    expect(moment(new Date(2001, 0, 2, 3, 4, 5).getTime())).toBe("2 Jan 2001 03:04:05");
  });
});
