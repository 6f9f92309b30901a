/**
 * The address holds the whole view: `#/workers/w0?t=…&status=failed`. It is in the hash, so that the page
 * works below any path of a proxy and without routes on the server.
 */
import { useSyncExternalStore } from "react";

export interface Place {
  path: readonly string[];
  params: Readonly<Record<string, string>>;
}

/** Parameters that every view keeps: the time cursor and the archived run. */
const KEPT_PARAMS = ["t", "run"];

export function parse(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    params: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function format(place: Place): string {
  const path = place.path.map(encodeURIComponent).join("/");
  const given = Object.entries(place.params).filter(([, value]) => value !== "");
  const query = new URLSearchParams(given).toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

let cached: { hash: string; place: Place } = { hash: "\u0000", place: parse("") };

/** The current place; the same object while the address is the same. */
export function here(): Place {
  if (cached.hash !== location.hash) cached = { hash: location.hash, place: parse(location.hash) };
  return cached.place;
}

function subscribe(listener: () => void): () => void {
  window.addEventListener("hashchange", listener);
  return () => window.removeEventListener("hashchange", listener);
}

export function usePlace(): Place {
  return useSyncExternalStore(subscribe, here);
}

/** The address of another view, at the same moment of the same run. */
export function hrefTo(path: readonly string[], params: Record<string, string> = {}): string {
  const kept = Object.entries(here().params).filter(([name]) => KEPT_PARAMS.includes(name));
  return format({ path, params: { ...Object.fromEntries(kept), ...params } });
}

/** Changes parameters of the current view; an empty value removes the parameter. */
export function change(params: Record<string, string>, how: "push" | "replace" = "replace"): void {
  const place = here();
  const target = format({ path: place.path, params: { ...place.params, ...params } });
  if (target === location.hash) return;
  if (how === "push") {
    location.hash = target;
  } else {
    history.replaceState(null, "", target);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

export function go(path: readonly string[], params?: Record<string, string>): void {
  location.hash = hrefTo(path, params);
}

/** One parameter of the address, and a function that changes it. */
export function useParam(name: string, fallback = ""): [string, (value: string) => void] {
  const value = usePlace().params[name] ?? fallback;
  return [value, (next) => change({ [name]: next === fallback ? "" : next })];
}
