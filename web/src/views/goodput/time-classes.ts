/** The colour of each class of worker time, and amounts of money as text. */
import type { TimeClass } from "../../api/timeline";

interface Ink {
  colour: string;
  opacity: number;
}

/** From the bottom of the chart to its top: productive time, waiting, then what was lost. */
export const INKS: Record<TimeClass, Ink> = {
  productive: { colour: "active", opacity: 0.75 },
  evaluation: { colour: "active", opacity: 0.3 },
  data_wait: { colour: "accent", opacity: 0.9 },
  communication_wait: { colour: "accent", opacity: 0.4 },
  straggler_wait: { colour: "recovering", opacity: 0.5 },
  paused: { colour: "recovering", opacity: 0.95 },
  checkpoint_stall: { colour: "saving", opacity: 0.9 },
  checkpoint_restore: { colour: "saving", opacity: 0.5 },
  loss_detection: { colour: "failed", opacity: 0.3 },
  replacement_wait: { colour: "failed", opacity: 0.6 },
  rolled_back: { colour: "failed", opacity: 1 },
  starting: { colour: "idle", opacity: 0.95 },
  idle: { colour: "idle", opacity: 0.55 },
  standby: { colour: "idle", opacity: 0.12 },
  unknown: { colour: "idle", opacity: 0.3 },
};

export const ORDER = Object.keys(INKS) as TimeClass[];

const INK_OF_UNKNOWN: Ink = { colour: "faint", opacity: 1 };

/** The ink of a class; one that this page does not know is drawn grey. */
export const inkOf = (name: string): Ink => INKS[name as TimeClass] ?? INK_OF_UNKNOWN;

/** An amount of money; small amounts keep two digits that are not 0. */
export function money(currency: string, cost: number | null | undefined): string {
  if (cost === null || cost === undefined) return "–";
  const digits = cost === 0 || cost >= 0.01 ? 2 : 4;
  return `${currency}${cost.toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

/** A share with one decimal; a share above 0 is never shown as 0. */
export function share(value: number): string {
  if (value > 0 && value < 0.001) return "< 0.1 %";
  return `${(value * 100).toFixed(1)} %`;
}

const PRICE = /^[^\w\s.,/+-]{0,3}\s*\d+(\.\d+)?\s*([A-Z]{3})?\s*\/\s*(gpu|worker|host)-hour$/;

/** Whether the API accepts a price, so that it is only asked for when it is complete. */
export function isPrice(text: string): boolean {
  const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
  return parts.every((part) => PRICE.test(part.slice(part.lastIndexOf("=") + 1).trim()));
}
