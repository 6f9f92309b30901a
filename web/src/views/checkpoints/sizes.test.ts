import { describe, expect, it } from "vitest";
import type { Checkpoint } from "../../api/types";
import { newBytes, storedSoFar } from "./sizes";

describe("the sizes of a checkpoint", () => {
  const saving = (written: number, total: number, parts: number) =>
    storedSoFar({ size_written: written, size_total: total, parts, parts_expected: 2 } as Checkpoint);
  it("never look complete while a part is missing", () => {
    expect(saving(0, 0, 0)).toBe("nothing yet");
    expect(saving(0, 2000, 0)).toBe("0 of 2.0 KB");
    expect(saving(1000, 0, 0)).toBe("1.0 KB so far");
    expect(saving(1000, 2000, 1)).toBe("1.0 KB of 2.0 KB");
    expect(saving(2000, 2000, 0)).toBe("2.0 KB, unconfirmed");
  });
  it("are not recorded for old checkpoints", () => {
    expect(newBytes({ size_new: null } as unknown as Checkpoint)).toBe("not recorded");
    expect(newBytes({ size_new: 0 } as unknown as Checkpoint)).toBe("0 B");
  });
});
