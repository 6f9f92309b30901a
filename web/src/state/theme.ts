/** The colour theme: light, dark or the system's; remembered in this browser. */
import { useSyncExternalStore } from "react";

export type Theme = "auto" | "light" | "dark";
export const THEMES: readonly Theme[] = ["auto", "light", "dark"];

const KEY = "strata-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function stored(): Theme {
  try {
    return (localStorage.getItem(KEY) as Theme | null) ?? "auto";
  } catch {
    return "auto";
  }
}

let theme: Theme = stored();

function apply(): void {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  for (const listener of listeners) listener();
}

export function setTheme(next: Theme): void {
  theme = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Without storage the theme lasts until the page is closed.
  }
  apply();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  system.addEventListener("change", listener);
  return () => {
    listeners.delete(listener);
    system.removeEventListener("change", listener);
  };
}

export function useTheme(): Theme {
  return useSyncExternalStore(subscribe, () => theme);
}

/** The scheme in effect; canvases are drawn again when it changes. */
export function useScheme(): "light" | "dark" {
  return useSyncExternalStore(subscribe, () =>
    theme === "auto" ? (system.matches ? "dark" : "light") : theme,
  );
}

apply();
