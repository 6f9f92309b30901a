import { expect, it } from "vitest";
import { lookAt, pinnedFrom, pinnedText } from "./pinned-runs";

it("keeps tasks and archived runs in the address, with any characters in their names", () => {
  const runs = [{ task: "train-1", run: "" }, { task: "a,b@c", run: "run 7/@x" }];
  expect(pinnedFrom(pinnedText(runs))).toEqual(runs);
  expect(pinnedFrom("")).toEqual([]);
});

it("gives each run of a comparison a look of its own", () => {
  const looks = Array.from({ length: 12 }, (_, index) => JSON.stringify(lookAt(index)));
  expect(new Set(looks).size).toBe(12);
});
