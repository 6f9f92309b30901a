/** Keys that act while nobody types. A key is named as the browser names it, in small letters. */
import { useEffect, useRef } from "react";

export type Keys = Record<string, () => void>;

const TYPING = "input, textarea, select, [contenteditable]";

/** The name of a key with what is held: `mod+k` is Ctrl or ⌘ with K. */
export function nameOf(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">): string {
  const name = event.key.toLowerCase();
  return event.ctrlKey || event.metaKey ? `mod+${name}` : event.altKey ? `alt+${name}` : name;
}

/** Lets keys act for as long as the component is there. */
export function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  useEffect(() => {
    latest.current = keys;
  });
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const name = nameOf(event);
      const action = latest.current[name];
      const typing = event.target instanceof Element && event.target.matches(TYPING);
      if (!action || event.defaultPrevented || (typing && !name.startsWith("mod+"))) return;
      event.preventDefault();
      action();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
}
