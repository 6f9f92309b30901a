/** Numbers, sizes, durations and times as text. */

const LOCALE = "en-GB";
const MISSING = "–";

/** Shown for a value of a past moment that was not recorded. */
export const UNRECORDED = "not recorded";

const whole = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** A count with separated thousands; millions in short form. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return MISSING;
  return Math.abs(value) >= 1e6 ? short.format(value) : whole.format(value);
}

/** A number with about three digits. */
export function figure(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  if (size >= 1e5) return short.format(value);
  if (size >= 100) return whole.format(value);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.01 || size === 0 ? value.toFixed(2) : value.toPrecision(1);
}

/** A number short enough for an axis. */
export function compact(value: number): string {
  return Math.abs(value) >= 10_000 ? short.format(value) : String(Number(value.toPrecision(3)));
}

const SIZES = ["B", "KB", "MB", "GB", "TB", "PB"];

/** A size in bytes, in powers of a thousand. */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return MISSING;
  let rest = value;
  let unit = 0;
  while (Math.abs(rest) >= 1000 && unit < SIZES.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${unit === 0 || rest >= 100 ? Math.round(rest) : rest.toFixed(1)} ${SIZES[unit]}`;
}

export function percent(value: number | null | undefined): string {
  return value === null || value === undefined ? MISSING : `${Math.round(value)} %`;
}

/** A duration in its two largest units. */
export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return MISSING;
  const size = Math.abs(ms);
  if (size < 1) return `${ms.toFixed(2)} ms`;
  if (size < 1000) return `${Math.round(ms)} ms`;
  if (size < 60_000) return `${(ms / 1000).toFixed(size < 10_000 ? 1 : 0)} s`;
  const seconds = Math.round(size / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}

/** The time since a moment; never negative, also when clocks differ. */
export function age(atMs: number, nowMs: number): string {
  const ms = Math.max(0, nowMs - atMs);
  return ms < 1000 ? "now" : duration(Math.floor(ms / 1000) * 1000);
}

const pad = (value: number, digits = 2) => String(value).padStart(digits, "0");

/** The time of day, to the second or to the millisecond. */
export function clock(atMs: number, precise = false): string {
  const at = new Date(atMs);
  const text = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return precise ? `${text}.${pad(Math.floor(atMs % 1000), 3)}` : text;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** Date and time; the year only when it is not the current one. */
export function moment(atMs: number, precise = false): string {
  const at = new Date(atMs);
  const year = at.getFullYear() === new Date().getFullYear() ? "" : ` ${at.getFullYear()}`;
  return `${at.getDate()} ${MONTHS[at.getMonth()]}${year} ${clock(atMs, precise)}`;
}

/** "1 worker", "2 workers". */
export function plural(value: number, word: string): string {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}
