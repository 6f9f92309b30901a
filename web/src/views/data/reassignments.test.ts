import { expect, it } from "vitest";
import { movesText } from "./reassignments";

it("lists moves with their shares", () => {
  expect(movesText([[0, 3, "", "w0"], [8, 9, "", "w0"], [4, 7, "w1", "w2"]])).toBe("60 % no owner → w0, 40 % w1 → w2");
});
