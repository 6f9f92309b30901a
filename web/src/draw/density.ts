/** The histogram of events on the time strip: a bar for each bucket, and a mark for losses, recoveries and checkpoints. */
import type { Bucket } from "../api/timeline";
import type { Size } from "../lib/canvas";

/** The height of each bar from 0 to 1; square roots, so that small bars are visible beside large ones. */
export function heights(buckets: readonly Bucket[]): number[] {
  const most = Math.max(1, ...buckets.map((bucket) => bucket.facts + bucket.events));
  return buckets.map((bucket) => Math.sqrt((bucket.facts + bucket.events) / most));
}

export interface DensityInks {
  edge: string;
  failed: string;
  recovering: string;
  saving: string;
}

const MARK_PX = 3;

/** Draws the buckets between two pixels; outside of them nothing was counted yet. */
export function drawDensity(
  context: CanvasRenderingContext2D,
  size: Size,
  [left, right]: readonly [number, number],
  buckets: readonly Bucket[],
  inks: DensityInks,
): void {
  context.clearRect(0, 0, size.width, size.height);
  const width = (right - left) / Math.max(buckets.length, 1);
  const room = size.height - MARK_PX - 1;
  context.fillStyle = inks.edge;
  heights(buckets).forEach((share, index) => {
    const high = share === 0 ? 0 : Math.max(1, share * room);
    context.fillRect(left + index * width, size.height - high, Math.max(width - 0.5, 0.5), high);
  });
  buckets.forEach((bucket, index) => {
    const ink = markColour(bucket, inks);
    if (!ink) return;
    context.fillStyle = ink;
    context.fillRect(left + index * width, 0, Math.max(width, 2), MARK_PX);
  });
}

/** The colour of the most severe event in a bucket. */
function markColour(bucket: Bucket, inks: DensityInks): string | null {
  if (bucket.losses > 0) return inks.failed;
  if (bucket.recoveries > 0) return inks.recovering;
  return bucket.checkpoints > 0 ? inks.saving : null;
}
