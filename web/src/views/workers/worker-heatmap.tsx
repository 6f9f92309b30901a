/** The heatmap: a cell for each worker, grouped by host. The table below has the same values. */
import { useEffect, useMemo, useRef, useState, type PointerEvent } from "react";
import type { Worker } from "../../api/types";
import { cellAt, differing, drawCells, drawGroups, layOut, type Cell, type Layout } from "../../draw/heatmap";
import { colours, fit, useSize } from "../../lib/canvas";
import { age, count, percent } from "../../lib/format";
import { useNow } from "../../state/cluster";
import { useScheme } from "../../state/theme";
import { go } from "../../state/url";
import { lookOf, Mark } from "../../ui/state-mark";
import { cellsOf, gpuUse, LEGEND, type By } from "./worker-cells";

const INKS = ["active", "idle", "saving", "recovering", "failed", "faint", "page"] as const;
const STATUSES = ["active", "checkpointing", "recovering", "idle", "failed"];
const MAX_HEIGHT_PX = 320;

export function Heatmap({ workers, by }: { workers: readonly Worker[]; by: By }) {
  const now = useNow(by === "beat" ? "second" : "minute");
  const scheme = useScheme();
  const { ref, size } = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const cells = useMemo(() => cellsOf(workers, by, now), [workers, by, now]);
  const placed = usePlacedCells(cells);
  const layout = useMemo(() => layOut(placed, size.width), [placed, size.width]);
  const [hovered, setHovered] = useState(-1);
  useDrawing(canvas, layout, cells, size.width, scheme);

  const find = (event: PointerEvent) => {
    const box = event.currentTarget.getBoundingClientRect();
    return cellAt(layout, event.clientX - box.left, event.clientY - box.top);
  };
  const worker = workers[hovered];
  return (
    <div className="px-6 pb-4 max-sm:px-4">
      <div ref={ref} className="relative overflow-x-hidden overflow-y-auto" style={{ maxHeight: MAX_HEIGHT_PX }}>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${workers.length} workers by ${by}; the table below has the same figures`}
          className={`block w-full ${worker ? "cursor-pointer" : ""}`}
          style={{ height: layout.height }}
          onPointerMove={(event) => setHovered(find(event))}
          onPointerLeave={() => setHovered(-1)}
          onClick={() => worker && go(["workers", worker.id])}
        />
      </div>
      <div className="mt-2 flex min-h-5 flex-wrap items-center gap-x-4 text-s text-dim">
        {worker ? <Hovered worker={worker} now={now} /> : <Legend by={by} />}
      </div>
    </div>
  );
}

/** The cells for the layout; the same object while no worker is added or removed. */
function usePlacedCells(cells: readonly Cell[]): readonly Cell[] {
  const [placed, setPlaced] = useState(cells);
  const same =
    placed.length === cells.length &&
    cells.every((cell, index) => cell.key === placed[index]?.key && cell.group === placed[index].group);
  if (!same) setPlaced(cells);
  return same ? placed : cells;
}

/** Draws all cells when the layout or the colours change, otherwise only the changed ones. */
function useDrawing(
  canvas: React.RefObject<HTMLCanvasElement | null>,
  layout: Layout,
  cells: readonly Cell[],
  width: number,
  scheme: string,
) {
  const drawn = useRef<{ layout: Layout; scheme: string; cells: readonly Cell[] } | null>(null);
  const inks = useMemo(() => ({ scheme, ...colours(INKS) }), [scheme]);
  useEffect(() => {
    const element = canvas.current;
    if (!element || width === 0) return;
    const before = drawn.current;
    const whole = before?.layout !== layout || before.scheme !== scheme;
    const context = whole ? fit(element, { width, height: layout.height }) : element.getContext("2d");
    if (!context) return;
    if (whole) {
      context.clearRect(0, 0, width, layout.height);
      drawGroups(context, layout, inks.faint);
    }
    drawCells(context, layout, cells, whole ? cells.keys() : differing(before.cells, cells), inks);
    drawn.current = { layout, scheme, cells };
  }, [canvas, layout, cells, width, scheme, inks]);
}

function Hovered({ worker, now }: { worker: Worker; now: number }) {
  return (
    <>
      <span className="font-medium text-text">{worker.id}</span>
      <Mark state={worker.status} />
      <span>step {count(worker.current_step)}</span>
      <span>GPU {percent(gpuUse(worker))}</span>
      <span>last heartbeat {age(worker.last_heartbeat, now)}</span>
      <span className="truncate">{worker.reason}</span>
    </>
  );
}

function Legend({ by }: { by: By }) {
  if (by === "state") {
    return STATUSES.map((status) => (
      <span key={status} className="flex items-center gap-1.5">
        <Swatch colour={lookOf(status).colour} strength={status === "idle" ? 0.4 : 1} />
        {status}
      </span>
    ));
  }
  const colour = { gpu: "active", lag: "recovering", beat: "failed" }[by];
  const [weak, strong] = LEGEND[by];
  return (
    <span className="flex items-center gap-1.5">
      {weak}
      {[0, 0.25, 0.5, 0.75, 1].map((strength) => (
        <Swatch key={strength} colour={colour} strength={strength} />
      ))}
      {strong}
    </span>
  );
}

function Swatch({ colour, strength }: { colour: string; strength: number }) {
  return (
    <span
      aria-hidden
      className="size-2.5"
      style={{ background: `var(--color-${colour})`, opacity: 0.2 + 0.8 * strength }}
    />
  );
}
