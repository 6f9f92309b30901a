import { act, screen, within } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import type { Worker } from "../api/types";
import { show } from "../testing/show";
import { WorkerTable } from "../views/workers/worker-table";
import { Table, type Column } from "./table";

interface Row { name: string; step: number }
const COLUMNS: Column<Row>[] = [
  { name: "Worker", width: "1fr", cell: (row) => row.name, by: (row) => row.name },
  { name: "Last step", width: "1fr", cell: (row) => row.step, by: (row) => row.step },
];
const ROWS = [{ name: "w10", step: 1 }, { name: "w9", step: 3 }, { name: "w1", step: 2 }];
const table = <Table label="Workers" rows={ROWS} columns={COLUMNS} keyOf={(row) => row.name} />;
const order = () => screen.getAllByRole("row").slice(1).map((row) => within(row).getAllByRole("cell")[0]!.textContent);

it("puts the order of its rows into the address", async () => {
  const { user } = show(table, "#/workers?q=w");
  await user.click(screen.getByRole("button", { name: /Last step/ }));
  expect(order()).toEqual(["w10", "w1", "w9"]);
  expect(location.hash).toBe("#/workers?q=w&sort=last-step");
  await user.click(screen.getByRole("button", { name: /Last step/ }));
  expect(order()).toEqual(["w9", "w1", "w10"]);
  expect(location.hash).toBe("#/workers?q=w&sort=-last-step");
});

it("takes the order of its rows from the address", () => {
  show(table, "#/workers?sort=-worker");
  expect(order()).toEqual(["w10", "w9", "w1"]);
  expect(screen.getByRole("columnheader", { name: /Worker/ }).getAttribute("aria-sort")).toBe("descending");
});

it("does not sort the workers again when only the clock has moved", () => {
  vi.useFakeTimers();
  let compared = 0;
  const workers = Array.from({ length: 10_000 }, (_, number) => ({
    id: `w${number}`,
    resources: null,
    get last_heartbeat() {
      compared += 1;
      return number;
    },
  })) as unknown as Worker[];
  show(<WorkerTable workers={workers} />, "#/workers?sort=last-heartbeat");
  const before = compared;
  expect(before).toBeGreaterThan(9999);
  act(() => void vi.advanceTimersByTime(5000));
  expect(compared - before).toBeLessThan(1000);
});

it("arranges the rows while they are in their initial order", async () => {
  const arrange = (rows: readonly Row[]) => rows.toReversed();
  const { user } = show(<Table label="Workers" rows={ROWS} columns={COLUMNS} keyOf={(row) => row.name} sort={{ column: "Worker", down: false }} arrange={arrange} />);
  expect(order()).toEqual(["w10", "w9", "w1"]);
  await user.click(screen.getByRole("button", { name: /Last step/ }));
  expect(order()).toEqual(["w10", "w1", "w9"]);
});
