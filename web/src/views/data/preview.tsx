/** Samples in progress on the workers: images, numbers or text. */
import { useQuery } from "@tanstack/react-query";
import { api, bodyOf } from "../../api/client";
import type { Sample, Shard } from "../../api/types";
import { figure, UNRECORDED } from "../../lib/format";
import { visible } from "../../lib/text";
import { useCursor, useDemo } from "../../state/cluster";
import { simulatedSamples } from "../../state/simulated";
import { change, hrefTo } from "../../state/url";
import { Section } from "../../ui/page";

const SHOWN = 24;

export function Preview({ id, shards }: { id: string; shards: readonly Shard[] }) {
  const cursor = useCursor();
  const live = cursor === null;
  const demo = useDemo() === "recorded";
  const { data } = useQuery({
    queryKey: ["preview", id],
    enabled: live,
    queryFn: ({ signal }) => bodyOf(api.GET("/api/datasets/{dataset_id}/preview", { params: { path: { dataset_id: id }, query: { limit: SHOWN } }, signal })),
    refetchInterval: 4000,
  });
  const samples = live ? data : demo ? simulatedSamples(shards, cursor) : undefined;
  return (
    <Section title="Samples in progress" className="mt-8">
      {!live && !demo && <p className="text-faint">Samples are {UNRECORDED}: they are only shown while workers process them.</p>}
      {live && !data?.length && <p className="text-faint">No samples in progress. Workers that read with run.batches(…) show them.</p>}
      <ul className="grid grid-cols-[repeat(auto-fill,minmax(13rem,1fr))] gap-x-8 gap-y-4">
        {samples?.map((sample) => <SampleCard key={`${sample.worker_id} ${sample.id}`} sample={sample} />)}
      </ul>
    </Section>
  );
}

function SampleCard({ sample }: { sample: Sample & { place?: number | null } }) {
  const { place } = sample;
  const shard = String(sample.shard_id ?? "");
  return (
    <li className="min-w-0">
      <p className="truncate text-s text-faint">
        sample {sample.id} · {typeof place === "number" && `place ${place} · `}<button type="button" className="hover:underline" onClick={() => change({ shard })}>shard {shard}</button>
      </p>
      {Object.entries(sample.features).map(([name, value]) => (
        <Feature key={name} name={name} value={value} />
      ))}
      {sample.label !== null && sample.label !== undefined && <p className="truncate">label <span className="font-medium">{asText(sample.label)}</span></p>}
      {sample.worker_id && <a href={hrefTo(["workers", sample.worker_id])} className="block truncate text-s text-faint hover:underline">{sample.worker_id}</a>}
    </li>
  );
}

interface Special {
  kind?: string;
  png?: string;
  width?: number;
  height?: number;
  values?: unknown[];
  shape?: number[];
  hex?: string;
}

function Feature({ name, value }: { name: string; value: unknown }) {
  const special = (typeof value === "object" && value !== null ? value : {}) as Special;
  if (special.kind === "image" && special.png) {
    return <img alt={`${name}, ${special.width} × ${special.height}`} src={`data:image/png;base64,${special.png}`} className="my-1 h-24 [image-rendering:pixelated]" />;
  }
  if (special.kind === "array" && special.values) return <Numbers name={name} values={special.values} shape={special.shape ?? []} />;
  return (
    <p className="truncate" title={asText(value)}>
      <span className="text-faint">{name}</span> {special.hex ?? asText(value)}
    </p>
  );
}

/** Numbers as small bars around zero, and the first ones as text. */
function Numbers({ name, values, shape }: { name: string; values: unknown[]; shape: number[] }) {
  const numbers = values.filter((value): value is number => typeof value === "number");
  const most = Math.max(1e-9, ...numbers.map(Math.abs));
  return (
    <div className="my-1" title={numbers.map(figure).join(" ")}>
      <div aria-hidden className="flex h-8 items-center gap-px">
        {numbers.map((value, index) => (
          <span
            // The index identifies a number of an array.
            // oxlint-disable-next-line react/no-array-index-key
            key={index}
            className={`flex-1 ${value < 0 ? "bg-recovering" : "bg-accent"}`}
            style={{ height: `${Math.max((Math.abs(value) / most) * 50, 3)}%`, transform: `translateY(${value < 0 ? 50 : -50}%)` }}
          />
        ))}
      </div>
      <p className="truncate text-s text-faint">{name} {shape.join(" × ")}: {numbers.slice(0, 6).map(figure).join("  ")}</p>
    </div>
  );
}

function asText(value: unknown): string {
  return typeof value === "string" ? visible(value) : JSON.stringify(value);
}
