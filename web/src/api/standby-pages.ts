/** The dashboards of other coordinators with the same store: one of them takes over when this one ends. */

const PROBE_MS = 3000;

/** Their addresses, from the document that the coordinator served (its setting `standby_pages`). */
export function standbyPages(): string[] {
  const given = document.querySelector<HTMLMetaElement>('meta[name="strata-standby-pages"]')?.content ?? "";
  return given.split(",").filter((url) => url !== "" && url !== location.origin);
}

/** The first address that answers; null if none does. */
export async function answeringPage(pages: readonly string[]): Promise<string | null> {
  const probes = pages.map(async (page) => {
    await fetch(`${page}/api/health`, { credentials: "omit", signal: AbortSignal.timeout(PROBE_MS) });
    return page;
  });
  return Promise.any(probes).catch(() => null);
}

/** Changes to a dashboard that answers, at the same view and time. */
export async function changePage(open: (url: string) => void = (url) => location.replace(url)): Promise<void> {
  const page = await answeringPage(standbyPages());
  if (page) open(`${page}/${location.hash}`);
}
