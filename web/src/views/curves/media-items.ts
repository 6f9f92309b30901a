/** The newest item of each name at a step. */
import type { Media } from "../../api/timeline";
import { byName } from "../../lib/text";

export interface Shown {
  key: string;
  title: string;
  item: Media;
}

/** One item for each name, and for each worker where several logged the same name; the newest not after the step. */
export function itemsAt(items: readonly Media[], step: number): Shown[] {
  const writers = new Map<string, Set<string>>();
  for (const { name, worker } of items) writers.set(name, (writers.get(name) ?? new Set()).add(worker));
  const newest = new Map<string, Shown>();
  for (const item of items) {
    if (item.step > step) continue;
    const title = writers.get(item.name)!.size > 1 ? `${item.name} (${item.worker})` : item.name;
    const key = `${item.kind} ${title}`;
    const known = newest.get(key)?.item;
    if (!known || known.step < item.step || (known.step === item.step && known.time_ms <= item.time_ms)) newest.set(key, { key, title, item });
  }
  return [...newest.values()].toSorted((a, b) => byName(a.title, b.title));
}
