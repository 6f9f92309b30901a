import { expect, it } from "vitest";
import type { Media } from "../../api/timeline";
import { itemsAt } from "./media-items";

const item = (name: string, step: number, given: Partial<Media> = {}) => ({ name, step, kind: "image", worker: "w0", time_ms: step, ref: `${name}@${step}`, ...given }) as Media;

it("shows the newest item of each name that is not after the step", () => {
  const items = [item("b", 10), item("a", 10), item("a", 20), item("a", 30)];
  expect(itemsAt(items, 25).map((shown) => [shown.title, shown.item.step])).toEqual([["a", 20], ["b", 10]]);
  expect(itemsAt(items, 5)).toEqual([]);
});

it("keeps apart what several workers logged under one name", () => {
  const shown = itemsAt([item("a", 10), item("a", 10, { worker: "w1" })], 10);
  expect(shown.map(({ title }) => title)).toEqual(["a (w0)", "a (w1)"]);
});
