import { expect, it } from "vitest";
import { momentText } from "./cluster";

it("shows of an event the moment in which it has happened, never the one before", () => {
  expect([1000, 1000.25, 1000.75].map(momentText)).toEqual(["1000", "1001", "1001"]);
});
