/** The answer to a question: the explanation, the chain of causes, and the cost. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError, curl, type Query } from "../../api/client";
import type { WhyAnswer } from "../../api/timeline";
import { clock } from "../../lib/format";
import { visible } from "../../lib/text";
import { useTimeline } from "../../state/cluster";
import { Button } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { ErrorMessage, Loading } from "../../ui/placeholders";
import { Mark } from "../../ui/state-mark";
import { Section } from "../../ui/page";

interface Props {
  query: Query;
  onEvent: (ref: string) => void;
}

/** A button that asks; answers can take a moment, so the question is not asked before. */
export function WhyButton({ query, onEvent }: Props) {
  const [asked, setAsked] = useState(false);
  if (!asked) return <Button tone="main" onClick={() => setAsked(true)}>Why?</Button>;
  return <Why query={query} onEvent={onEvent} />;
}

export function Why({ query, onEvent }: Props) {
  const timeline = useTimeline();
  const { data, error, isPending } = useQuery({
    queryKey: ["why", query],
    queryFn: ({ signal }) => timeline.why(query, signal),
    retry: false,
  });
  if (error instanceof ApiError && error.status === 404) return <p className="py-2 text-dim">{error.message}. {error.hint}</p>;
  if (error) return <ErrorMessage error={error} />;
  if (isPending) return <Loading />;
  return <Answer answer={data} query={query} onEvent={onEvent} />;
}

function Answer({ answer, query, onEvent }: Props & { answer: WhyAnswer }) {
  const grave = answer.trust.findings.filter((finding) => finding.grave);
  return (
    <Section title={`Why ${answer.question}`} aside={<Mark state={answer.verdict} label={answer.verdict} />}>
      {grave.length > 0 && <p className="mb-2 text-recovering">▲ The record is incomplete: {grave.map((finding) => finding.text).join("; ")}</p>}
      <p>{visible(answer.answer)}</p>
      <ol className="my-3">
        {answer.chain.map((link) => (
          <li key={`${link.ref} ${link.text}`}>
            <button type="button" onClick={() => onEvent(link.ref)} className="flex w-full gap-3 py-0.5 text-left hover:bg-hover">
              <time className="text-faint">{clock(link.at_ms, true)}</time>
              <span className="min-w-0">{visible(link.text)} <span className="text-faint">{link.node}</span></span>
            </button>
          </li>
        ))}
      </ol>
      {answer.cost.text && <p className="text-dim">Cost: {answer.cost.text}</p>}
      {answer.findings.length > 0 && (
        <ul className="mt-2 list-inside list-disc text-dim">
          {answer.findings.map((finding) => <li key={finding}>{visible(finding)}</li>)}
        </ul>
      )}
      <div className="mt-3"><CopyButton label="Copy as curl" text={() => curl("/timeline/why", query)} /></div>
    </Section>
  );
}
