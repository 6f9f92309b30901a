/**
 * Cells grouped by name, such as workers by host. The layout is computed when cells are added or removed;
 * drawing takes the changed cells only, so that a thousand heartbeats per second cost few fills.
 */

import { byName } from "../lib/text";

export interface Cell {
  key: string;
  group: string;
  /** The name of a theme colour, and its strength from 0 to 1. */
  colour: string;
  strength: number;
}

export interface Placed {
  x: number;
  y: number;
}

export interface Layout {
  cell: number;
  pitch: number;
  height: number;
  places: Placed[];
  groups: { name: string; x: number; y: number; width: number }[];
}

const GAP = 2;
const GROUP_GAP = 12;
const LABEL = 16;
const LABEL_PITCH = 10;

/** The size of a cell: the more cells, the smaller, so that all of them fit on a screen. */
export function cellSize(count: number): number {
  if (count <= 200) return 22;
  if (count <= 1000) return 14;
  return count <= 4000 ? 9 : 6;
}

/** The place of each cell; the cells of a group are together, under the name of the group if it has one. */
export function layOut(cells: readonly Cell[], width: number): Layout {
  const cell = cellSize(cells.length);
  const pitch = cell + GAP;
  const members = new Map<string, number[]>();
  cells.forEach(({ group }, index) => {
    const known = members.get(group);
    if (known) known.push(index);
    else members.set(group, [index]);
  });
  const places: Placed[] = Array.from({ length: cells.length });
  const groups: Layout["groups"] = [];
  const named = !members.has("") && (pitch >= LABEL_PITCH || members.size <= 64);
  const top = named ? LABEL : 0;
  let [x, y, rowHeight] = [0, 0, 0];
  for (const [name, indexes] of [...members].toSorted(([a], [b]) => byName(a, b))) {
    const most = Math.max(1, Math.floor(width / pitch));
    const columns = name === "" ? most : columnsOf(indexes.length, most);
    const wide = Math.max(columns * pitch, named ? Math.min(name.length * 7, 120) : 0);
    const high = Math.ceil(indexes.length / columns) * pitch + top;
    if (x > 0 && x + wide > width) {
      [x, y, rowHeight] = [0, y + rowHeight + GROUP_GAP, 0];
    }
    if (named) groups.push({ name, x, y, width: wide });
    indexes.forEach((index, number) => {
      places[index] = {
        x: x + (number % columns) * pitch,
        y: y + top + Math.floor(number / columns) * pitch,
      };
    });
    x += wide + GROUP_GAP;
    rowHeight = Math.max(rowHeight, high);
  }
  return { cell, pitch, height: y + rowHeight, places, groups };
}

/** A few members fit in one row; many form a block that is wider than high. */
function columnsOf(members: number, most: number): number {
  const wanted = members <= 8 ? members : Math.ceil(Math.sqrt(members * 2.5));
  return Math.max(1, Math.min(wanted, most));
}

export interface Inks {
  [name: string]: string;
}

/**
 * Fills the changed cells; weak colours are mixed with the background. Cells of one colour are filled
 * together, because changing the fill colour of a canvas costs more than filling.
 */
export function drawCells(
  context: CanvasRenderingContext2D,
  layout: Layout,
  cells: readonly Cell[],
  changed: Iterable<number>,
  inks: Inks,
): void {
  const { cell, places } = layout;
  const alike = new Map<string, number[]>();
  for (const index of changed) {
    const { colour, strength } = cells[index]!;
    const look = mixed(inks[colour] ?? inks.idle!, inks.page!, 0.2 + 0.8 * strength);
    const known = alike.get(look);
    if (known) known.push(index);
    else alike.set(look, [index]);
  }
  for (const [look, indexes] of alike) {
    context.fillStyle = look;
    for (const index of indexes) {
      const place = places[index];
      if (place) context.fillRect(place.x, place.y, cell, cell);
    }
  }
}

const mixtures = new Map<string, string>();

/** The mix of two colours, all as `rgb(r, g, b)`. */
export function mixed(over: string, under: string, share: number): string {
  const key = `${over}|${under}|${share}`;
  const known = mixtures.get(key);
  if (known) return known;
  const [above, below] = [over, under].map((text) => (text.match(/[\d.]+/g) ?? []).map(Number));
  const parts = [0, 1, 2].map((at) => Math.round((above?.[at] ?? 0) * share + (below?.[at] ?? 0) * (1 - share)));
  const made = `rgb(${parts.join(", ")})`;
  mixtures.set(key, made);
  return made;
}

/** Draws the names of the groups. */
export function drawGroups(context: CanvasRenderingContext2D, layout: Layout, ink: string): void {
  context.fillStyle = ink;
  context.font = '11px "Inter", system-ui, sans-serif';
  context.textBaseline = "top";
  for (const { name, x, y, width } of layout.groups) {
    context.fillText(shortened(name, Math.floor(width / 6)), x, y + 1);
  }
}

function shortened(text: string, letters: number): string {
  return text.length <= letters ? text : `${text.slice(0, Math.max(letters - 1, 1))}…`;
}

/** The indexes of the cells that look different. */
export function differing(before: readonly Cell[], after: readonly Cell[]): number[] {
  const changed: number[] = [];
  for (let index = 0; index < after.length; index += 1) {
    const [old, now] = [before[index], after[index]!];
    if (old?.colour !== now.colour || old.strength !== now.strength) changed.push(index);
  }
  return changed;
}

/** The index of the cell at a point; -1 if there is none. */
export function cellAt(layout: Layout, x: number, y: number): number {
  const { cell, places } = layout;
  return places.findIndex(
    (place) => x >= place.x && x < place.x + cell && y >= place.y && y < place.y + cell,
  );
}
