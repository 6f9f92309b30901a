import { screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { WorkerLane } from "./worker-lane";

const lane = (node: string) => ({ node, label: "", task: "t", rank: 0, spans: [], marks: [], seconds: null });
const workers = Array.from({ length: 1000 }, (_, number) => lane(`w${number}`));

it("shows the lane of the last of a thousand workers", async () => {
  serve({
    "/api/timeline/lanes": (query) => {
      const wanted = workers.filter(({ node }) => !query.get("node") || node === query.get("node"));
      return { body: { lanes: wanted.slice(0, 200), truncated: wanted.length > 200, next: "", fine: true } };
    },
  });
  show(<WorkerLane node="w999" />, "#/workers/w999");
  expect(await screen.findByRole("img", { name: /^What 1 worker did/ })).toBeTruthy();
});
