/** A map with a cell for each shard: todo, leased to a worker, or consumed. */
import { useEffect, useMemo, useRef, useState } from "react";
import type { Shard } from "../../api/types";
import { cellAt, drawCells, layOut, type Cell } from "../../draw/heatmap";
import { colours, fit, useSize } from "../../lib/canvas";
import { count } from "../../lib/format";
import { useScheme } from "../../state/theme";
import { Mark } from "../../ui/state-mark";
import { rangeOf } from "./shard-table";

const COLOURS = { todo: "idle", leased: "active", consumed: "accent" } as const;
const INKS = ["idle", "active", "accent", "page"] as const;

/** The cell of a shard; the shards of the chosen owner stand out. */
export function cellOf(shard: Shard, owner: string): Cell {
  const strong = owner === "" ? shard.state !== "todo" : shard.worker_id === owner;
  return { key: String(shard.shard_id), group: "", colour: COLOURS[shard.state], strength: strong ? 1 : 0.15 };
}

export function ShardMap({ shards, owner }: { shards: readonly Shard[]; owner: string }) {
  const { ref, size } = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const scheme = useScheme();
  const [hovered, setHovered] = useState(-1);
  const cells = useMemo(() => shards.map((shard) => cellOf(shard, owner)), [shards, owner]);
  const layout = useMemo(() => layOut(cells, size.width), [cells, size.width]);
  useEffect(() => {
    const element = canvas.current;
    const context = element && size.width > 0 ? fit(element, { width: size.width, height: layout.height }) : null;
    if (!context) return;
    context.clearRect(0, 0, size.width, layout.height);
    drawCells(context, layout, cells, cells.keys(), colours(INKS));
  }, [cells, layout, size.width, scheme]);
  const shard = shards[hovered];
  return (
    <div ref={ref}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${shards.length} shards; the table below names the owner of each`}
        className="block w-full"
        style={{ height: layout.height }}
        onPointerMove={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          setHovered(cellAt(layout, event.clientX - box.left, event.clientY - box.top));
        }}
        onPointerLeave={() => setHovered(-1)}
      />
      <div className="mt-2 flex h-5 items-center gap-4 text-s text-dim">
        {shard ? <Hovered shard={shard} /> : <Legend shards={shards} />}
      </div>
    </div>
  );
}

function Hovered({ shard }: { shard: Shard }) {
  return (
    <>
      <span className="font-medium text-text">shard {shard.shard_id}</span>
      <span>{(shard as { layout?: string }).layout === "epoch" ? "places" : "samples"} {rangeOf(shard)}</span>
      <Mark state={shard.state} />
      <span>{shard.worker_id ?? "no owner"}</span>
    </>
  );
}

function Legend({ shards }: { shards: readonly Shard[] }) {
  const states = ["leased", "consumed", "todo"] as const;
  return states.map((state) => (
    <span key={state} className="flex items-center gap-1.5">
      <span aria-hidden className="size-2.5" style={{ background: `var(--color-${COLOURS[state]})`, opacity: state === "todo" ? 0.32 : 1 }} />
      {state} {count(shards.filter((shard) => shard.state === state).length)}
    </span>
  ));
}
