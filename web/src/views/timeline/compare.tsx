/** The panel that compares the state of the cluster at two moments. */
import { useQuery } from "@tanstack/react-query";
import { moment } from "../../lib/format";
import type { Span } from "../../lib/scale";
import { visible } from "../../lib/text";
import { useCursor, useTimeline } from "../../state/cluster";
import { useParam } from "../../state/url";
import { Button } from "../../ui/controls";
import { Drawer } from "../../ui/drawer";
import { Loading, TimelineError } from "../../ui/placeholders";

export function Compare({ bounds, close }: { bounds: Span; close: () => void }) {
  const cursor = useCursor() ?? bounds.to;
  const [first, setFirst] = useParam("a");
  const [second, setSecond] = useParam("b");
  const [a, b] = [Number(first), Number(second)];
  const both = first !== "" && second !== "";
  return (
    <Drawer title="Compare two moments" close={close}>
      <p className="mb-3 text-dim">Move the time cursor on the strip at the top, then use it as the first or the second moment.</p>
      {[{ name: "First", at: first, set: setFirst }, { name: "Second", at: second, set: setSecond }].map(({ name, at, set }) => (
        <p key={name} className="flex items-center gap-3 py-1">
          <span className="w-14 text-faint">{name}</span>
          <time className="flex-1">{at ? moment(Number(at), true) : "–"}</time>
          <Button onClick={() => set(String(Math.round(cursor)))}>Use the cursor</Button>
        </p>
      ))}
      {both && <Changes a={Math.min(a, b)} b={Math.max(a, b)} />}
    </Drawer>
  );
}

function Changes({ a, b }: { a: number; b: number }) {
  const timeline = useTimeline();
  const { data, error, isPending } = useQuery({ queryKey: ["diff", a, b], queryFn: ({ signal }) => timeline.diff(a, b, signal), retry: false });
  if (error) return <TimelineError error={error} />;
  if (isPending) return <Loading />;
  if (data.changes.length === 0) return <p className="mt-4 text-dim">No differences.</p>;
  return (
    <ul className="mt-4">
      {data.changes.map((change) => (
        <li key={change.path} className="border-b border-line/60 py-1.5" title={change.path}>
          {visible(change.text)}
        </li>
      ))}
    </ul>
  );
}
