/** Answers that stay while their successors are loaded, for queries whose number changes. */
import { useEffect, useRef } from "react";

/** What is loaded for each key, or what was last; lists of queries do not have `keepPreviousData`. */
export function useKept<Data>(keys: readonly string[], loaded: readonly (Data | undefined)[]): (Data | undefined)[] {
  const kept = useRef(new Map<string, Data>());
  const shown = keys.map((key, index) => loaded[index] ?? kept.current.get(key));
  useEffect(() => {
    kept.current = new Map(keys.flatMap((key, index) => (shown[index] === undefined ? [] : [[key, shown[index]] as const])));
  });
  return shown;
}
