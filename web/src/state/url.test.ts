import { describe, expect, it } from "vitest";
import { format, parse } from "./url";

describe("the address", () => {
  it("holds the view, the id and the filters", () => {
    expect(parse("#/workers/a%2Fb?t=12&q=x+y")).toEqual({
      path: ["workers", "a/b"],
      params: { t: "12", q: "x y" },
    });
  });
  it("survives a round trip with any characters in names", () => {
    const place = { path: ["tasks", "a b/ü?#"], params: { q: "&=?" } };
    expect(parse(format(place))).toEqual(place);
  });
  it("leaves out empty parameters", () => {
    expect(format({ path: ["logs"], params: { level: "", q: "x" } })).toBe("#/logs?q=x");
  });
  it("parses a malformed address", () => {
    expect(parse("#/%E0%A4%A")).toEqual({ path: ["%E0%A4%A"], params: {} });
    expect(parse("")).toEqual({ path: [], params: {} });
  });
});
