/** Images, texts and histograms that the script logged, as of a step that a slider chooses. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { Media } from "../../api/timeline";
import { count, plural } from "../../lib/format";
import { cut, visible } from "../../lib/text";
import { useCursor, useTimeline } from "../../state/cluster";
import { useParam } from "../../state/url";
import { ErrorMessage } from "../../ui/placeholders";
import { Section } from "../../ui/page";
import { itemsAt, type Shown } from "./media-items";

const REFRESH_MS = 5000;
const PAGE = 1000;
const MOST_PAGES = 5;

function useMedia(task: string, running: boolean) {
  const timeline = useTimeline();
  return useQuery({
    queryKey: ["media", task],
    queryFn: async ({ signal }) => {
      const items: Media[] = [];
      let cursor = "";
      for (let page = 0; page < MOST_PAGES; page += 1) {
        // Each page begins where the one before it ended.
        // oxlint-disable-next-line no-await-in-loop
        const found = await timeline.media({ task, limit: PAGE, cursor }, signal);
        items.push(...found.items);
        cursor = found.next;
        if (!cursor) break;
      }
      return { items, more: cursor !== "" };
    },
    refetchInterval: running ? REFRESH_MS : false,
    retry: false,
  });
}

/** Nothing while the task has logged none. */
export function LoggedMedia({ task, running }: { task: string; running: boolean }) {
  const { data, error } = useMedia(task, running);
  const [chosen, setChosen] = useParam("media");
  const cursor = useCursor();
  const kept = useMemo(() => data?.items.filter(({ undone, time_ms }) => !undone && (cursor === null || time_ms <= cursor)) ?? [], [data, cursor]);
  const steps = useMemo(() => [...new Set(kept.map(({ step }) => step))].toSorted((a, b) => a - b), [kept]);
  if (error) return <ErrorMessage error={error} />;
  if (!data || data.items.length === 0) return null;
  const last = steps.at(-1) ?? 0;
  const step = chosen === "" ? last : Number(chosen);
  const place = Math.max(steps.findLastIndex((each) => each <= step), 0);
  const undone = data.items.filter((each) => each.undone).length;
  return (
    <Section title="Images, texts and histograms" className="mt-8">
      <div className="mb-3 flex items-center gap-3 text-s text-dim">
        <span aria-hidden>Step</span>
        <input
          type="range"
          min={0}
          max={Math.max(steps.length - 1, 0)}
          value={place}
          aria-label="Step of the items"
          aria-valuetext={`step ${steps[place] ?? 0}`}
          className="w-80 max-w-[50vw] accent-accent"
          onChange={(event) => setChosen(Number(event.target.value) === steps.length - 1 ? "" : String(steps[Number(event.target.value)]))}
        />
        <output className="tabular-nums">{count(steps[place] ?? 0)}</output>
      </div>
      <ul className="flex flex-wrap gap-x-6 gap-y-4">
        {itemsAt(kept, steps[place] ?? 0).map((shown) => <li key={shown.key} className="max-w-72 min-w-40"><Item shown={shown} /></li>)}
      </ul>
      {undone > 0 && <p className="mt-2 text-s text-faint">{plural(undone, "item")} of steps that a recovery undid {undone === 1 ? "is" : "are"} left out.</p>}
      {data.more && <p className="mt-2 text-s text-recovering">The first {count(data.items.length)} items are shown; GET /api/timeline/media has all.</p>}
    </Section>
  );
}

function Item({ shown: { item, title } }: { shown: Shown }) {
  return (
    <figure>
      <figcaption className="mb-1 flex items-baseline gap-2">
        <span className="truncate font-medium" title={title}>{title}</span>
        <span className="ml-auto text-s whitespace-nowrap text-faint">step {count(item.step)}</span>
      </figcaption>
      {item.skipped ? <p className="text-s text-recovering">not recorded: {item.skipped}</p> : <Content item={item} />}
      {item.caption && <p className="mt-1 text-s text-dim">{visible(item.caption)}</p>}
    </figure>
  );
}

function Content({ item }: { item: Media }) {
  const timeline = useTimeline();
  if (item.kind === "image") {
    return <img src={timeline.mediaAddress(item.ref)} alt={item.caption || `${item.name} at step ${item.step}`} loading="lazy" className="max-h-40 min-h-16 max-w-full rounded-sm border border-line object-contain [image-rendering:pixelated]" />;
  }
  return item.kind === "text" ? <LoggedText item={item} /> : <Histogram item={item} />;
}

function LoggedText({ item }: { item: Media }) {
  const timeline = useTimeline();
  const { data, error } = useQuery({ queryKey: ["media text", item.ref], queryFn: ({ signal }) => timeline.mediaText(item.ref, signal), staleTime: Infinity, retry: false });
  if (error) return <ErrorMessage error={error} />;
  const { head, hidden } = cut(visible(data ?? ""));
  // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex
  return <pre tabIndex={0} aria-label={item.name} className="max-h-40 overflow-auto rounded-sm border border-line p-2 font-mono text-s whitespace-pre-wrap">{head}{hidden > 0 && ` … ${count(hidden)} more characters`}</pre>;
}

const BOX = { width: 200, height: 80 };

function Histogram({ item }: { item: Media }) {
  const timeline = useTimeline();
  const { data, error } = useQuery({ queryKey: ["media histogram", item.ref], queryFn: ({ signal }) => timeline.mediaHistogram(item.ref, signal), staleTime: Infinity, retry: false });
  if (error) return <ErrorMessage error={error} />;
  if (!data) return <p className="text-faint">Loading…</p>;
  const { edges, counts, not_finite = 0 } = data;
  const most = Math.max(...counts, 1);
  const [from, to] = [edges[0] ?? 0, edges.at(-1) ?? 1];
  const place = (edge: number) => ((edge - from) / (to - from || 1)) * BOX.width;
  const total = counts.reduce((sum, each) => sum + each, 0);
  return (
    <>
      <svg role="img" aria-label={`${item.name}: ${count(total)} values from ${from.toPrecision(3)} to ${to.toPrecision(3)}`} viewBox={`0 0 ${BOX.width} ${BOX.height}`} className="h-20 w-50 border-b border-edge">
        {counts.map((each, index) => (
          <rect key={edges[index]} x={place(edges[index]!)} width={Math.max(place(edges[index + 1]!) - place(edges[index]!) - 0.5, 0.5)} y={BOX.height * (1 - each / most)} height={BOX.height * (each / most)} className="fill-accent" />
        ))}
      </svg>
      <p className="flex justify-between text-s text-faint"><span>{from.toPrecision(3)}</span><span>{to.toPrecision(3)}</span></p>
      {not_finite > 0 && <p className="text-s text-failed">{plural(not_finite, "value")} NaN or infinite</p>}
    </>
  );
}
