/**
 * Finds the items whose text matches, in a list that grows at its end: what was looked at is not
 * looked at again while the question is the same.
 */
import { pattern } from "./text";

export interface Sifted<Item> {
  shown: readonly Item[];
  /** Why the question makes no sense, or nothing. */
  fault: string;
}

export class Sieve<Item> {
  private question = "";
  private first: Item | undefined;
  private last: Item | undefined;
  private shown: Item[] = [];

  constructor(private readonly textOf: (item: Item) => string) {}

  sift(items: readonly Item[], search: string, regex: boolean): Sifted<Item> {
    if (search === "") return { shown: items, fault: "" };
    const wanted = pattern(search, regex);
    if ("fault" in wanted) return { shown: items, fault: wanted.fault };
    const question = `${regex} ${search}`;
    const same = question === this.question && this.first === items[0];
    const from = same && this.last !== undefined ? items.lastIndexOf(this.last) + 1 : 0;
    const fresh = items.slice(from).filter((item) => wanted.test(this.textOf(item)));
    this.shown = from > 0 ? [...this.shown, ...fresh] : fresh;
    this.question = question;
    this.first = items[0];
    this.last = items[items.length - 1];
    return { shown: this.shown, fault: "" };
  }
}
