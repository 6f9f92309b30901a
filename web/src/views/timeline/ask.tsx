/** The panel with the questions that the coordinator can answer from the timeline. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Question } from "../../api/timeline";
import { useTimeline } from "../../state/cluster";
import { Button, Field } from "../../ui/controls";
import { Drawer } from "../../ui/drawer";
import { Loading, TimelineError } from "../../ui/placeholders";
import { Why } from "./why";

export function Ask({ close, onEvent }: { close: () => void; onEvent: (ref: string) => void }) {
  const timeline = useTimeline();
  const { data, error } = useQuery({ queryKey: ["questions"], queryFn: ({ signal }) => timeline.questions(signal), retry: false });
  const [chosen, setChosen] = useState<Question | null>(null);
  return (
    <Drawer title={chosen ? chosen.text : "Ask why"} close={close}>
      {error && <TimelineError error={error} />}
      {!data && !error && <Loading />}
      {data && !chosen && (
        <ul>
          {data.map((question) => (
            <li key={question.name}>
              <button type="button" onClick={() => setChosen(question)} className="w-full border-b border-line/60 py-1.5 text-left hover:bg-hover">{question.text}</button>
            </li>
          ))}
        </ul>
      )}
      {chosen && <QuestionForm question={chosen} back={() => setChosen(null)} onEvent={onEvent} />}
    </Drawer>
  );
}

function QuestionForm({ question, back, onEvent }: { question: Question; back: () => void; onEvent: (ref: string) => void }) {
  const params = question.params ?? [];
  const [given, setGiven] = useState<Record<string, string>>({});
  const [sent, setSent] = useState<Record<string, string> | null>(params.length === 0 ? {} : null);
  const ready = params.every(({ name, required }) => !required || given[name]?.trim());
  return (
    <form
      className="flex flex-col gap-3"
      onSubmit={(event) => {
        event.preventDefault();
        setSent(given);
      }}
    >
      {params.map(({ name, kind, required }) => (
        <label key={name} className="text-s text-dim">
          {name}, {kind}{!required && ", optional"}
          <Field label={name} className="mt-1 block w-full" value={given[name] ?? ""} onChange={(event) => setGiven({ ...given, [name]: event.target.value })} />
        </label>
      ))}
      <div className="flex gap-2">
        <Button type="submit" tone="main" disabled={!ready}>Ask</Button>
        <Button onClick={back}>Other questions</Button>
      </div>
      {sent && <Why query={{ question: question.name, ...sent }} onEvent={onEvent} />}
    </form>
  );
}
