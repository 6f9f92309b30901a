/** The dashboards of other coordinators with the same store: one of them takes over when this one ends. */

const PROBE_MS = 3000;

/** After this time without a coordinator that leads, one that only answers reads will do. */
const PATIENCE_MS = 15_000;

/** Their addresses, from the document that the coordinator served (its setting `standby_pages`). */
export function standbyPages(): string[] {
  const given = document.querySelector<HTMLMetaElement>('meta[name="strata-standby-pages"]')?.content ?? "";
  return given.split(",").filter((url) => url !== "" && url !== location.origin);
}

/** The first address that answers, and leads if that is asked for; null if there is none. */
export async function answeringPage(pages: readonly string[], leads: boolean): Promise<string | null> {
  const probes = pages.map(async (page) => {
    const answer = await fetch(`${page}/api/health`, { credentials: "omit", signal: AbortSignal.timeout(PROBE_MS) });
    const { mode } = (await answer.json()) as { mode?: string };
    if (!answer.ok || (leads && mode === "standby")) throw new Error(`${page} does not lead`);
    return page;
  });
  return Promise.any(probes).catch(() => null);
}

/**
 * Changes to a dashboard that answers, at the same view and time. A standby that takes over closes its
 * port for a moment, so one that leads already is preferred.
 */
export async function changePage(sinceMs: number, open: (url: string) => void = (url) => location.replace(url)): Promise<void> {
  const page = await answeringPage(standbyPages(), Date.now() - sinceMs < PATIENCE_MS);
  if (page) open(`${page}/${location.hash}`);
}
