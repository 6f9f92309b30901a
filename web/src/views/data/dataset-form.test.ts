import { describe, expect, it } from "vitest";
import { BLANK, requestOf } from "./dataset-form";

describe("a dataset's form", () => {
  it("makes a request with zeros for what the coordinator detects", () => {
    expect(requestOf({ ...BLANK, dataset_id: " d ", path: "/data", metadata: "a=b=c" })).toMatchObject({
      request: { dataset_id: "d", path: "/data", total_samples: 0, shard_size: 0, seed: 42, shuffle: true, metadata: { a: "b=c" } },
    });
  });
  it("reports every wrong field", () => {
    const made = requestOf({ ...BLANK, shard_size: "-1", seed: "", metadata: "x" });
    expect(Object.keys((made as { errors: object }).errors).toSorted()).toEqual(["dataset_id", "metadata", "seed", "shard_size", "total_samples"]);
  });
});
