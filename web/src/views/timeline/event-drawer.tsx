/** The details of an event: causes, effects, operation, body, and an explanation. */
import { useQuery } from "@tanstack/react-query";
import { curl } from "../../api/client";
import type { LinkedEvent, Operation } from "../../api/timeline";
import { clock, duration, moment } from "../../lib/format";
import { visible } from "../../lib/text";
import { moveCursor, useTimeline } from "../../state/cluster";
import { Button, Fact } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Drawer } from "../../ui/drawer";
import { ErrorMessage, Loading } from "../../ui/placeholders";
import { Term } from "../../ui/term";
import { Section } from "../../ui/page";
import { WhyButton } from "./why";

export function EventDrawer({ eventRef, close, onEvent }: {
  eventRef: string;
  close: () => void;
  onEvent: (ref: string) => void;
}) {
  const timeline = useTimeline();
  const { data, error } = useQuery({
    queryKey: ["event", eventRef],
    queryFn: ({ signal }) => timeline.event(eventRef, signal),
    staleTime: Infinity,
    retry: false,
  });
  return (
    <Drawer title={data?.kind ?? eventRef} close={close}>
      {error && <ErrorMessage error={error} />}
      {!data && !error && <Loading />}
      {data && (
        <>
          <p className="mb-4 text-dim">{visible(data.summary)}</p>
          <dl className="grid grid-cols-2 gap-4">
            <Fact name="When">{moment(data.at_ms, true)}</Fact>
            <Fact name="Node">{data.node}, <Term word="incarnation" /> {data.incarnation}</Fact>
            <Fact name="Reference"><span className="font-mono text-s">{data.ref}</span></Fact>
            <Fact name="Version">{data.version}</Fact>
          </dl>
          <div className="my-4 flex flex-wrap gap-2">
            <Button onClick={() => moveCursor(data.at_ms, "push")}>Show this moment</Button>
            <CopyButton label="Copy as curl" text={() => curl(`/timeline/event/${encodeURI(eventRef)}`)} />
          </div>
          <WhyButton query={{ ref: eventRef }} onEvent={onEvent} />
          {data.operation && <OperationSection operation={data.operation} onEvent={onEvent} />}
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

function OperationSection({ operation, onEvent }: { operation: Operation; onEvent: (ref: string) => void }) {
  const { text, started, completed, duration_ms, ok } = operation;
  return (
    <Section title="Operation" className="mt-6">
      <p>{text} <span className="font-mono text-s text-faint">{operation.op}</span></p>
      <p className="text-dim">
        {duration_ms === null ? "not finished" : `took ${duration(duration_ms)}`}
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
  links: readonly LinkedEvent[];
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
