import { screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { Preview } from "./preview";

const sample = { id: "7", features: { text: "a\u0007b", image: { kind: "image", png: "AA==", width: 8, height: 8 } }, label: "cat", shard_id: 3, worker_id: "w1", step: 0, epoch: 0, position: 0 };

it("shows text with visible control characters, images, labels and links", async () => {
  serve({ "/api/datasets/d/preview": () => ({ body: [sample] }) });
  const { user } = show(<Preview id="d" shards={[]} />, "#/data/d");
  expect(await screen.findByText("a␇b")).toBeTruthy();
  expect(screen.getByRole("img", { name: "image, 8 × 8" })).toBeTruthy();
  expect(screen.getByText("cat")).toBeTruthy();
  expect(screen.getByRole("link", { name: "w1" }).getAttribute("href")).toBe("#/workers/w1");
  await user.click(screen.getByRole("button", { name: "shard 3" }));
  expect(location.hash).toBe("#/data/d?shard=3");
});

it("says that samples of a past moment are not recorded", () => {
  serve({});
  show(<Preview id="d" shards={[]} />, "#/data/d?t=1000");
  expect(screen.getByText(/Samples are not recorded/)).toBeTruthy();
});
