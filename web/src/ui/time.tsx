/** Times that stay current: each follows the clock by itself, so that the lists around them need not. */
import { age, moment } from "../lib/format";
import { useNow } from "../state/cluster";

/** The time since a moment; with `ago` as a phrase of its own. */
export function Age({ at, ago = false }: { at: number; ago?: boolean }) {
  const text = age(at, useNow());
  return <time title={moment(at)}>{ago && text !== "now" ? `${text} ago` : text}</time>;
}
