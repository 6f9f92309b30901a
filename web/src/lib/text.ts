/** Text from users and workers: made safe to show, shortened, ordered and searched. */

export const SHOWN_CHARS = 2000;

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
const ANSI = /\u001b\[[0-9;?]*[ -/]*[@-~]/g;

/**
 * Text without terminal colour codes, and with visible signs for control characters, also for those that
 * change the direction of text. React escapes markup.
 */
export function visible(text: string): string {
  return text.replace(ANSI, "").replace(CONTROL, (sign) => {
    const code = sign.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : "\ufffd";
  });
}

/** The beginning of a long text, and the number of characters after it. */
export function cut(text: string, limit = SHOWN_CHARS): { head: string; hidden: number } {
  return text.length <= limit
    ? { head: text, hidden: 0 }
    : { head: text.slice(0, limit), hidden: text.length - limit };
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Orders names so that `worker-9` comes before `worker-10`. */
export const byName: (a: string, b: string) => number = COLLATOR.compare;

const SPECIAL = /[.*+?^${}()|[\]\\]/g;

export type Pattern = { test: (text: string) => boolean } | { error: string };

/** The test for a search: plain text or a regular expression, both ignoring case. */
export function pattern(search: string, regex: boolean): Pattern {
  try {
    // Also for plain text: a regular expression that ignores case is faster than toLowerCase().
    const expression = new RegExp(regex ? search : search.replace(SPECIAL, "\\$&"), "i");
    return { test: (text) => expression.test(text) };
  } catch (error) {
    return { error: error instanceof Error ? error.message : String(error) };
  }
}
