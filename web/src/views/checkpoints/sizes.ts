/** The sizes of a checkpoint as text. */
import type { Checkpoint } from "../../api/types";
import { bytes, UNRECORDED } from "../../lib/format";

/** The bytes that a checkpoint added to storage; unchanged parts are shared with earlier checkpoints. */
export function newBytes(saved: Checkpoint & { size_new?: number | null }): string {
  return saved.size_new === null || saved.size_new === undefined ? UNRECORDED : bytes(saved.size_new);
}

/** The bytes in storage while the ranks write. A part is complete once its rank has confirmed it. */
export function storedSoFar({ size_written, size_total, parts, parts_expected }: Checkpoint): string {
  if (size_written === 0) return size_total === 0 ? "nothing yet" : `0 of ${bytes(size_total)}`;
  if (size_total === 0) return `${bytes(size_written)} so far`;
  if (size_written >= size_total && parts < parts_expected) return `${bytes(size_written)}, unconfirmed`;
  return `${bytes(size_written)} of ${bytes(size_total)}`;
}
