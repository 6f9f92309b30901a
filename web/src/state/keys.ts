/**
 * Keyboard shortcuts. A key is named as the browser names it, in lower case; `mod+k` is Ctrl K or ⌘ K.
 *
 * A shortcut never takes a key from the element that has the focus: text fields keep all keys, buttons
 * and links keep Space, and regions that scroll keep Space and the arrow keys. Shortcuts that are a single
 * character can be turned off (WCAG 2.1.4).
 */
import { useEffect, useRef, useSyncExternalStore } from "react";

export type Keys = Record<string, () => void>;

const TEXT_FIELDS = "input:not([type=radio], [type=checkbox]), textarea, select, [contenteditable]";
const MODAL = "dialog[aria-modal]";
/** Regions that scroll can have the focus. Those with `data-page-keys` leave the arrow keys and Space to the view. */
const SCROLLS = "[tabindex='0']:not([data-page-keys])";
const USES_SPACE = `button, a, summary, label, input, ${SCROLLS}`;
const USES_ARROWS = `${SCROLLS}, [role=radiogroup]`;

export function nameOf(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">): string {
  const name = event.key.toLowerCase();
  return event.ctrlKey || event.metaKey ? `mod+${name}` : event.altKey ? `alt+${name}` : name;
}

function isTaken(name: string, target: EventTarget | null): boolean {
  if (!(target instanceof Element) || name.startsWith("mod+")) return false;
  if (target.closest(`${TEXT_FIELDS}, ${MODAL}`)) return true;
  if (name === " ") return target.closest(USES_SPACE) !== null;
  return name.startsWith("arrow") && target.closest(USES_ARROWS) !== null;
}

/** Lets keys act while the component is mounted. */
export function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  useEffect(() => {
    latest.current = keys;
  });
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const name = nameOf(event);
      const action = latest.current[name];
      if (!action || event.defaultPrevented || isTaken(name, event.target)) return;
      if (name.length === 1 && !characterKeys()) return;
      event.preventDefault();
      action();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
}

const STORED = "strata-character-keys";
const listeners = new Set<() => void>();

/** Whether shortcuts that are a single character act; remembered in this browser. */
function characterKeys(): boolean {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true;
  }
}

export function setCharacterKeys(on: boolean): void {
  try {
    localStorage.setItem(STORED, on ? "on" : "off");
  } catch {
    // Without storage the shortcuts stay on.
  }
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useCharacterKeys(): boolean {
  return useSyncExternalStore(subscribe, characterKeys);
}
