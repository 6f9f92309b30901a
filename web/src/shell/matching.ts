/** Finding a command by some of its letters. */

export interface Command {
  title: string;
  group: string;
  keys?: string;
  run: () => void;
}

const MOST = 50;

/** Those whose letters hold what is typed, in order; the closest first. */
export function matching(all: readonly Command[], typed: string): Command[] {
  const wanted = typed.trim().toLowerCase();
  if (wanted === "") return all.slice(0, MOST);
  return all
    .map((command) => ({ command, distance: distanceOf(`${command.title} ${command.group}`.toLowerCase(), wanted) }))
    .filter(({ distance }) => distance < Infinity)
    .toSorted((a, b) => a.distance - b.distance)
    .slice(0, MOST)
    .map(({ command }) => command);
}

/** How far apart the letters lie in the text; infinite if it does not hold them all. */
export function distanceOf(text: string, wanted: string): number {
  const whole = text.indexOf(wanted);
  if (whole >= 0) return whole;
  let [at, gaps] = [-1, 0];
  for (const letter of wanted) {
    const next = text.indexOf(letter, at + 1);
    if (next < 0) return Infinity;
    gaps += next - at - 1;
    at = next;
  }
  return 1000 + gaps;
}
