import { describe, expect, it } from "vitest";
import { Sieve } from "./sieve";
import { byName, cut, pattern, visible } from "./text";

describe("text that others wrote", () => {
  it("leaves terminal colours out and makes control characters visible", () => {
    expect(visible("\u001b[31mred\u001b[0m\u0000\u0007\u007f")).toBe("red\u2400\u2407\u2421");
  });
  it("does not let text turn its direction", () => {
    expect(visible("a\u202eb")).toBe("a\ufffdb");
  });
  it("leaves markup as it is: it is written as text", () => {
    expect(visible("<script>alert(1)</script>")).toBe("<script>alert(1)</script>");
  });
  it("cuts a line of a megabyte and says how much is hidden", () => {
    const { head, hidden } = cut("x".repeat(1_000_000), 500);
    expect([head.length, hidden]).toEqual([500, 999_500]);
  });
  it("orders names with numbers in them", () => {
    expect(["w10", "w9", "w1"].toSorted(byName)).toEqual(["w1", "w9", "w10"]);
  });
});

describe("search", () => {
  it("finds text whatever the case", () => {
    const found = pattern("Loss", false);
    expect("test" in found && found.test("step 1: LOSS 0.3")).toBe(true);
    const dotted = pattern("a.b(c)[d]", false);
    expect("test" in dotted && [dotted.test("x A.B(C)[D]"), dotted.test("axb(c)[d]")]).toEqual([true, false]);
  });
  it("takes a regular expression, and says what is wrong with a bad one", () => {
    const found = pattern("step \\d{3}:", true);
    expect("test" in found && found.test("step 120: loss")).toBe(true);
    expect(pattern("(", true)).toHaveProperty("fault");
  });
  it("looks only at what is new while the question is the same", () => {
    let looked = 0;
    const sieve = new Sieve<{ text: string }>((line) => {
      looked += 1;
      return line.text;
    });
    const lines = [{ text: "a" }, { text: "b" }];
    expect(sieve.sift(lines, "a", false).shown).toHaveLength(1);
    const more = [...lines, { text: "a again" }];
    expect(sieve.sift(more, "a", false).shown).toEqual([lines[0], more[2]]);
    expect(looked).toBe(3);
    expect(sieve.sift(more, "b", false).shown).toEqual([lines[1]]);
  });
  it("shows everything when the expression makes no sense", () => {
    const sieve = new Sieve<string>((line) => line);
    expect(sieve.sift(["a"], "(", true)).toMatchObject({ shown: ["a"] });
  });
});
