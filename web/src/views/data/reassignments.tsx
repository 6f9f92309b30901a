/** The last reassignments of shards, and their reasons. */
import { clock, percent } from "../../lib/format";
import { visible } from "../../lib/text";
import { useFacts } from "../../state/facts";
import { Section } from "../../ui/page";

const REFRESH_MS = 5000;

type Move = [first: number, last: number, source: string, target: string];

/** Moves as text, with their share of all moved shards: "25 % w1 → w0". */
export function movesText(moves: readonly Move[]): string {
  const between = new Map<string, number>();
  for (const [first, last, source, target] of moves) {
    const way = `${source || "no owner"} → ${target || "no owner"}`;
    between.set(way, (between.get(way) ?? 0) + last - first + 1);
  }
  const all = [...between.values()].reduce((sum, number) => sum + number, 0);
  const parts = [...between].map(([way, number]) => `${percent((number / all) * 100)} ${way}`);
  return parts.length > 4 ? `${parts.slice(0, 4).join(", ")} and ${parts.length - 4} more` : parts.join(", ");
}

export function Reassignments({ dataset }: { dataset: string }) {
  const facts = useFacts("AssignmentChanged", 100, REFRESH_MS);
  const moved = facts.filter(({ fields }) => fields.dataset === dataset).slice(0, 8);
  return (
    <Section title="Last reassignments">
      {moved.length === 0 && <p className="text-faint">None among the latest facts.</p>}
      <ul>
        {moved.map(({ id, time, fields }) => (
          <li key={id} className="border-b border-line/60 py-1">
            <time className="mr-3 text-faint">{clock(time)}</time>
            generation {String(fields.generation)}: {visible(String(fields.reason))}
            <p className="text-s text-dim">{movesText(fields.moves as Move[])}</p>
          </li>
        ))}
      </ul>
    </Section>
  );
}
