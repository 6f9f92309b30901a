import { describe, expect, it } from "vitest";
import type { Lane, LaneSpan } from "../api/timeline";
import { drawDensity, heights } from "./density";
import { cellAt, cellSize, differing, drawCells, layOut, mixed, type Cell } from "./heatmap";
import { AXIS_PX, chartWidth, drawLanes, hit, isIdle, LABEL_PX, LANE_PX, placeOf, IDLE_PX, rowsOf, type Scene } from "./lanes";

/** A canvas that records filled rectangles. */
function canvas() {
  const filled: { x: number; y: number; width: number; height: number; ink: string }[] = [];
  const context = new Proxy({ fillStyle: "" } as Record<string, unknown>, {
    get: (target, name) => {
      if (name === "fillRect") {
        return (x: number, y: number, width: number, height: number) =>
          filled.push({ x, y, width, height, ink: String(target.fillStyle) });
      }
      if (name === "measureText") return (text: string) => ({ width: text.length * 6 });
      return name in target ? target[name as string] : () => undefined;
    },
    set: (target, name, value) => Reflect.set(target, name, value),
  });
  return { context: context as unknown as CanvasRenderingContext2D, filled };
}

const cell = (key: string, group = "host", colour = "active"): Cell => ({ key, group, colour, strength: 1 });

describe("the heatmap", () => {
  const cells = Array.from({ length: 24 }, (_, number) => cell(`w${number}`, `host${number % 3}`));

  it("gives every cell its own place within the width", () => {
    const { places, cell: size, height } = layOut(cells, 400);
    expect(new Set(places.map(({ x, y }) => `${x},${y}`)).size).toBe(24);
    expect(places.every(({ x, y }) => x + size <= 400 && y + size <= height)).toBe(true);
  });
  it("groups cells by host, hosts in order", () => {
    expect(layOut(cells, 400).groups.map(({ name }) => name)).toEqual(["host0", "host1", "host2"]);
  });
  it("shrinks cells as their number grows", () => {
    const sizes = [10, 500, 2000, 10_000].map(cellSize);
    expect(sizes).toEqual(sizes.toSorted((a, b) => b - a));
  });
  it("draws only changed cells", () => {
    const after = cells.with(5, cell("w5", "host2", "failed"));
    expect(differing(cells, after)).toEqual([5]);
    const { context, filled } = canvas();
    drawCells(context, layOut(after, 400), after, differing(cells, after), {
      failed: "rgb(255, 0, 0)", page: "rgb(0, 0, 0)",
    });
    expect(filled).toMatchObject([{ ink: "rgb(255, 0, 0)" }]);
  });
  it("mixes weak colours with the background", () => {
    expect(mixed("rgb(200, 100, 0)", "rgb(0, 0, 0)", 0.5)).toBe("rgb(100, 50, 0)");
  });
  it("finds the cell at a point", () => {
    const layout = layOut(cells, 400);
    const { x, y } = layout.places[7]!;
    expect(cellAt(layout, x + 1, y + 1)).toBe(7);
    expect(cellAt(layout, -5, -5)).toBe(-1);
  });
});

describe("density", () => {
  const bucket = (facts: number, losses = 0) => ({ facts, events: 0, losses, recoveries: 0, checkpoints: 0, failures: 0 });

  it("keeps small bars visible beside large ones", () => {
    expect(heights([bucket(0), bucket(1), bucket(100)])).toEqual([0, 0.1, 1]);
  });
  it("marks losses above the bars", () => {
    const { context, filled } = canvas();
    drawDensity(context, { width: 30, height: 20 }, [0, 30], [bucket(1), bucket(4, 1), bucket(0)], {
      edge: "grey", failed: "red", recovering: "amber", saving: "violet",
    });
    expect(filled.filter(({ ink }) => ink === "red")).toMatchObject([{ x: 10, y: 0 }]);
  });
});

describe("lanes", () => {
  const span = (from_ms: number, to_ms: number | null, kind: LaneSpan["kind"], ref: string): LaneSpan =>
    ({ from_ms, to_ms, kind, ref, label: kind, ok: true, count: 1 });
  const lane = (node: string, spans: LaneSpan[]): Lane => ({ node, label: "", task: "t", rank: 0, spans, marks: [], seconds: null });
  const seen = { from: 0, to: 1000 };
  const scene: Scene = { span: seen, now: 1000, cursor: 500, chosen: "", inks: { active: "green", failed: "red", page: "black", accent: "blue", edge: "grey" } };
  const size = { width: LABEL_PX + 1000, height: 200 };
  const busy = lane("w0", [span(0, null, "train", "long"), span(400, 600, "checkpoint", "short")]);
  const idle = lane("w1", [span(0, null, "idle", "idle")]);

  it("collapses idle lanes", () => {
    expect([isIdle(busy, seen), isIdle(idle, seen)]).toEqual([false, true]);
    expect(rowsOf([busy, idle], seen, true).map(({ height }) => height)).toEqual([LANE_PX, IDLE_PX]);
    expect(rowsOf([busy, idle], seen, false).map(({ height }) => height)).toEqual([LANE_PX, LANE_PX]);
  });
  it("finds the shortest span at a point, or nothing", () => {
    const rows = rowsOf([busy], seen, true);
    expect(hit(rows, size, scene, LABEL_PX + 500, AXIS_PX + 5)?.ref).toBe("short");
    expect(hit(rows, size, scene, LABEL_PX + 100, AXIS_PX + 5)?.ref).toBe("long");
    expect(hit(rows, size, scene, LABEL_PX + 100, 3)).toBeNull();
  });
  it("draws unfinished spans up to now, and the time cursor", () => {
    const { context, filled } = canvas();
    drawLanes(context, size, rowsOf([busy], seen, true), scene);
    const train = filled.find(({ ink }) => ink === "green");
    expect(train?.x).toBe(LABEL_PX);
    expect(train?.width).toBeGreaterThan(chartWidth(size) - 1);
    expect(filled.at(-1)).toMatchObject({ ink: "blue", height: size.height });
  });
  it("draws a loss at least one pixel wide at any zoom", () => {
    const { context, filled } = canvas();
    const hour = { ...scene, span: { from: 0, to: 3_600_000 } };
    drawLanes(context, size, rowsOf([lane("w2", [span(10, 11, "lost", "x")])], hour.span, true), hour);
    expect(filled.find(({ ink }) => ink === "red")?.width).toBeGreaterThan(1);
  });
  it("puts events without a lane on the axis", () => {
    const [x, y] = placeOf(rowsOf([busy], seen, true), scene, size, { node: "coordinator", at_ms: 500 });
    expect([x, y < AXIS_PX]).toEqual([LABEL_PX + 500, true]);
  });
});
