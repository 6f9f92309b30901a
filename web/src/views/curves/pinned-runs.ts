/** The runs of a comparison in the address: tasks of the log that is shown, or of archived runs. */
import { hrefTo } from "../../state/url";

export interface PinnedRun {
  task: string;
  /** The archived run; empty for the coordinator's own log. */
  run: string;
}

const MOST = 24;

/** "train-1,train-2@run-7": a task, and after @ the archived run that has it. */
export function pinnedFrom(text: string): PinnedRun[] {
  const runs = text.split(",").filter(Boolean).map((each) => {
    const [task = "", run = ""] = each.split("@").map(decodeURIComponent);
    return { task, run };
  });
  return runs.slice(0, MOST);
}

export const keyOf = ({ task, run }: PinnedRun): string => encodeURIComponent(task) + (run && `@${encodeURIComponent(run)}`);

export const pinnedText = (runs: readonly PinnedRun[]): string => runs.map(keyOf).join(",");

export const compareHref = (runs: readonly PinnedRun[]): string => hrefTo(["compare"], { tasks: pinnedText(runs) });

export const labelOf = ({ task, run }: PinnedRun): string => (run ? `${task} (${run})` : task);

const COLOURS = ["accent", "recovering", "active", "saving", "failed", "dim"];
const DASHES: readonly (readonly number[])[] = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

/** A colour and a dash for the run at a place in the list: two neighbours differ in both. */
export function lookAt(index: number): { colour: string; dash: readonly number[] } {
  return { colour: COLOURS[index % COLOURS.length]!, dash: DASHES[index % DASHES.length]! };
}
