/** Text that others wrote: shown as it is, and harmless. */

export const SHOWN_CHARS = 2000;

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
const ANSI = /\u001b\[[0-9;?]*[ -/]*[@-~]/g;

/**
 * Colour codes of terminals are left out; other control characters, and those that turn the
 * direction of text, become visible signs. Markup needs nothing: React writes text as text.
 */
export function visible(text: string): string {
  return text.replace(ANSI, "").replace(CONTROL, (sign) => {
    const code = sign.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : "\ufffd";
  });
}

/** The beginning of a long text, and how much of it is not shown. */
export function cut(text: string, limit = SHOWN_CHARS): { head: string; hidden: number } {
  return text.length <= limit
    ? { head: text, hidden: 0 }
    : { head: text.slice(0, limit), hidden: text.length - limit };
}

/** Orders names so that `worker-9` comes before `worker-10`. */
export function byName(a: string, b: string): number {
  return a.localeCompare(b, "en", { numeric: true });
}

const SPECIAL = /[.*+?^${}()|[\]\\]/g;

export type Pattern = { test: (text: string) => boolean } | { fault: string };

/** What a search box asks for: plain text whatever the case, or a regular expression. */
export function pattern(search: string, regex: boolean): Pattern {
  try {
    // Also for plain text: an expression that ignores case is quicker than making small letters.
    const expression = new RegExp(regex ? search : search.replace(SPECIAL, "\\$&"), "i");
    return { test: (text) => expression.test(text) };
  } catch (error) {
    return { fault: error instanceof Error ? error.message : String(error) };
  }
}
