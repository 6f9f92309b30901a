import { describe, expect, it } from "vitest";
import { nameOf } from "./keys";
import { format, parse } from "./url";

describe("the address", () => {
  it("names the view, the thing and the filters", () => {
    expect(parse("#/workers/a%2Fb?t=12&q=x+y")).toEqual({
      path: ["workers", "a/b"],
      params: { t: "12", q: "x y" },
    });
  });
  it("survives a round trip, whatever names hold", () => {
    const place = { path: ["tasks", "a b/ü?#"], params: { q: "&=?" } };
    expect(parse(format(place))).toEqual(place);
  });
  it("leaves out what is empty", () => {
    expect(format({ path: ["logs"], params: { level: "", q: "x" } })).toBe("#/logs?q=x");
  });
  it("is not broken by a broken one", () => {
    expect(parse("#/%E0%A4%A")).toEqual({ path: ["%E0%A4%A"], params: {} });
    expect(parse("")).toEqual({ path: [], params: {} });
  });
});

describe("keys", () => {
  const held = { ctrlKey: false, metaKey: false, altKey: false };
  it("are named with what is held", () => {
    expect(nameOf({ ...held, key: "K", ctrlKey: true })).toBe("mod+k");
    expect(nameOf({ ...held, key: "k", metaKey: true })).toBe("mod+k");
    expect(nameOf({ ...held, key: "ArrowLeft" })).toBe("arrowleft");
    expect(nameOf({ ...held, key: "?" })).toBe("?");
  });
});
