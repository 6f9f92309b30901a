/** What the latest rebalances moved, and why. */
import { clock, count } from "../../lib/format";
import { useFacts } from "../../state/facts";
import { Section } from "../../ui/page";

const REFRESH_MS = 5000;

type Move = [first: number, last: number, source: string, target: string];

/** Moves in words: "12 from w1 to w0". */
export function worded(moves: readonly Move[]): string {
  const between = new Map<string, number>();
  for (const [first, last, source, target] of moves) {
    const way = `${source || "nobody"} → ${target || "nobody"}`;
    between.set(way, (between.get(way) ?? 0) + last - first + 1);
  }
  const said = [...between].map(([way, number]) => `${count(number)} ${way}`);
  return said.length > 4 ? `${said.slice(0, 4).join(", ")} and ${said.length - 4} more` : said.join(", ");
}

export function Moves({ dataset, unit }: { dataset: string; unit: string }) {
  const facts = useFacts("AssignmentChanged", 100, REFRESH_MS);
  const moved = facts.filter(({ fields }) => fields.dataset === dataset).slice(0, 8);
  return (
    <Section title="What moved last">
      {moved.length === 0 && <p className="text-faint">Nothing has moved, as far as the latest facts tell.</p>}
      <ul>
        {moved.map(({ id, time, fields }) => (
          <li key={id} className="border-b border-line/60 py-1">
            <time className="mr-3 text-faint">{clock(time)}</time>
            {count(fields.moved as number)} {unit}, generation {String(fields.generation)}: {String(fields.reason)}
            <p className="truncate text-s text-dim">{worded(fields.moves as Move[])}</p>
          </li>
        ))}
      </ul>
    </Section>
  );
}
