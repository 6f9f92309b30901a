/** Incremental search in a list that grows at its end: items are tested once while the search is the same. */
import { pattern } from "./text";

export interface SearchResult<Item> {
  matches: readonly Item[];
  /** Why the search is not a valid regular expression; empty if it is. */
  error: string;
}

export class IncrementalSearch<Item> {
  private question = "";
  private first: Item | undefined;
  private last: Item | undefined;
  private matches: Item[] = [];

  constructor(private readonly textOf: (item: Item) => string) {}

  /** The items whose text matches; all items when the search is empty or invalid. */
  run(items: readonly Item[], search: string, regex: boolean): SearchResult<Item> {
    if (search === "") return { matches: items, error: "" };
    const wanted = pattern(search, regex);
    if ("error" in wanted) return { matches: items, error: wanted.error };
    const question = `${regex} ${search}`;
    const same = question === this.question && this.first === items[0];
    const from = same && this.last !== undefined ? items.lastIndexOf(this.last) + 1 : 0;
    const fresh = items.slice(from).filter((item) => wanted.test(this.textOf(item)));
    this.matches = from > 0 ? [...this.matches, ...fresh] : fresh;
    this.question = question;
    this.first = items[0];
    this.last = items[items.length - 1];
    return { matches: this.matches, error: "" };
  }
}
