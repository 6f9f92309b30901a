import { describe, expect, it } from "vitest";
import { IncrementalSearch } from "./search";
import { byName, cut, pattern, visible } from "./text";

describe("text from users", () => {
  it("removes terminal colours and makes control characters visible", () => {
    expect(visible("\u001b[31mred\u001b[0m\u0000\u0007\u007f")).toBe("red\u2400\u2407\u2421");
  });
  it("replaces characters that change the direction of text", () => {
    expect(visible("a\u202eb")).toBe("a\ufffdb");
  });
  it("leaves markup alone", () => {
    expect(visible("<script>alert(1)</script>")).toBe("<script>alert(1)</script>");
  });
  it("cuts a line of a megabyte and counts the hidden characters", () => {
    const { head, hidden } = cut("x".repeat(1_000_000), 500);
    expect([head.length, hidden]).toEqual([500, 999_500]);
  });
  it("orders names by the numbers in them", () => {
    expect(["w10", "w9", "w1"].toSorted(byName)).toEqual(["w1", "w9", "w10"]);
  });
});

describe("search", () => {
  it("ignores case", () => {
    const found = pattern("Loss", false);
    expect("test" in found && found.test("step 1: LOSS 0.3")).toBe(true);
    const dotted = pattern("a.b(c)[d]", false);
    expect("test" in dotted && [dotted.test("x A.B(C)[D]"), dotted.test("axb(c)[d]")]).toEqual([true, false]);
  });
  it("accepts a regular expression and reports an invalid one", () => {
    const found = pattern("step \\d{3}:", true);
    expect("test" in found && found.test("step 120: loss")).toBe(true);
    expect(pattern("(", true)).toHaveProperty("error");
  });
  it("tests only new items while the search is the same", () => {
    let tested = 0;
    const search = new IncrementalSearch<{ text: string }>((line) => {
      tested += 1;
      return line.text;
    });
    const lines = [{ text: "a" }, { text: "b" }];
    expect(search.run(lines, "a", false).matches).toHaveLength(1);
    const more = [...lines, { text: "a again" }];
    expect(search.run(more, "a", false).matches).toEqual([lines[0], more[2]]);
    expect(tested).toBe(3);
    expect(search.run(more, "b", false).matches).toEqual([lines[1]]);
  });
  it("returns all items for an invalid expression", () => {
    const search = new IncrementalSearch<string>((line) => line);
    expect(search.run(["a"], "(", true)).toMatchObject({ matches: ["a"] });
  });
});
