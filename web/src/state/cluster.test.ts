import { expect, it } from "vitest";
import { momentText } from "./cluster";

it("rounds the moment of an event up, so that the event has happened", () => {
  expect([1000, 1000.25, 1000.75].map(momentText)).toEqual(["1000", "1001", "1001"]);
});
