/** One event: its body, its operation, its causes and effects, and an explanation. */
import { useQuery } from "@tanstack/react-query";
import { curl } from "../../api/client";
import { event as ask, type Linked, type Operation } from "../../api/timeline";
import { clock, duration, moment } from "../../lib/format";
import { visible } from "../../lib/text";
import { moveCursor } from "../../state/cluster";
import { Button, Fact } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Drawer } from "../../ui/drawer";
import { Fault, Loading } from "../../ui/empty";
import { Section } from "../../ui/page";
import { Because } from "./because";

export function EventDrawer({ eventRef, close, onEvent }: {
  eventRef: string;
  close: () => void;
  onEvent: (ref: string) => void;
}) {
  const { data, error } = useQuery({
    queryKey: ["event", eventRef],
    queryFn: ({ signal }) => ask(eventRef, signal),
    staleTime: Infinity,
    retry: false,
  });
  return (
    <Drawer title={data?.kind ?? eventRef} close={close}>
      {error && <Fault error={error} />}
      {!data && !error && <Loading />}
      {data && (
        <>
          <p className="mb-4 text-dim">{visible(data.summary)}</p>
          <dl className="grid grid-cols-2 gap-4">
            <Fact name="When">{moment(data.at_ms, true)}</Fact>
            <Fact name="Node">{data.node} · {data.incarnation}</Fact>
            <Fact name="Reference"><span className="font-mono text-s">{data.ref}</span></Fact>
            <Fact name="Version">{data.version}</Fact>
          </dl>
          <div className="my-4 flex flex-wrap gap-2">
            <Button onClick={() => moveCursor(data.at_ms, "push")}>Show this moment</Button>
            <CopyButton label="Copy as curl" text={() => curl(`/timeline/event/${encodeURI(eventRef)}`)} />
          </div>
          <Because query={{ ref: eventRef }} onEvent={onEvent} />
          {data.operation && <Belongs operation={data.operation} onEvent={onEvent} />}
          <Links title="Causes" links={data.causes} onEvent={onEvent} />
          <Links title="Effects" links={data.effects} onEvent={onEvent} />
          <Section title="Body" className="mt-6">
            <pre className="max-h-96 overflow-auto font-mono text-s break-words whitespace-pre-wrap">{visible(JSON.stringify(data.body, null, 2))}</pre>
          </Section>
        </>
      )}
    </Drawer>
  );
}

function Belongs({ operation, onEvent }: { operation: Operation; onEvent: (ref: string) => void }) {
  const { text, started, completed, duration_ms, ok } = operation;
  return (
    <Section title="Operation" className="mt-6">
      <p>{text} <span className="font-mono text-s text-faint">{operation.op}</span></p>
      <p className="text-dim">
        {duration_ms === null ? "still open" : `took ${duration(duration_ms)}`}
        {ok === false && <span className="text-failed"> ✕ failed</span>}
      </p>
      <div className="mt-1 flex gap-2">
        {started && <Button onClick={() => onEvent(started)}>Start</Button>}
        {completed && <Button onClick={() => onEvent(completed)}>End</Button>}
      </div>
    </Section>
  );
}

function Links({ title, links, onEvent }: {
  title: string;
  links: readonly Linked[];
  onEvent: (ref: string) => void;
}) {
  if (links.length === 0) return null;
  return (
    <Section title={title} className="mt-6">
      <ul>
        {links.map((link) => (
          <li key={link.ref}>
            <button type="button" onClick={() => onEvent(link.ref)} className="flex w-full gap-3 py-0.5 text-left hover:bg-hover">
              <time className="text-faint">{clock(link.at_ms, true)}</time>
              <span className="min-w-0 truncate" title={link.summary}>{link.kind} <span className="text-dim">{visible(link.summary)}</span></span>
            </button>
          </li>
        ))}
      </ul>
    </Section>
  );
}
