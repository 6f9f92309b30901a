/** The rules that keep a checkpoint, as text. */
import type { Checkpoint } from "../../api/types";

export function keptBecause({ kept_because = [] }: Checkpoint): string {
  return kept_because.join(", ") || "–";
}

/** Whether a user pinned the checkpoint; forks and others pin with "pinned by". */
export function isPinned({ kept_because = [] }: Checkpoint): boolean {
  return kept_because.some((reason) => /^pinned(:|$)/.test(reason));
}
