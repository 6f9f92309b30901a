import { expect, it } from "vitest";
import { distanceOf, matching } from "./command-search";

it("finds commands by their letters, best match first", () => {
  const all = ["Tasks", "Settings", "train-1-w3"].map((title) => ({ title, group: "View", run: () => undefined }));
  expect(matching(all, "set").map(({ title }) => title)).toEqual(["Settings"]);
  expect(matching(all, "tw3")[0]?.title).toBe("train-1-w3");
  expect(distanceOf("abc", "zz")).toBe(Infinity);
});
