import { expect, it } from "vitest";
import type { Host } from "../../api/types";
import { pressures } from "./host-health";

it("names the resource of each pressure, also of one that was not recorded", () => {
  const health = { cpu_pressure_percent: 3.4, memory_pressure_percent: null, io_pressure_percent: 12 };
  expect(pressures({ health } as Host)).toBe("CPU 3 % · mem – · disk 12 %");
});
