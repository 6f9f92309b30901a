/** Search for a command by some of its letters. */

export interface Command {
  title: string;
  group: string;
  keys?: string;
  run: () => void;
}

const LIMIT = 50;

/** The commands that contain the typed letters in order, best match first. */
export function matching(all: readonly Command[], typed: string): Command[] {
  const wanted = typed.trim().toLowerCase();
  if (wanted === "") return all.slice(0, LIMIT);
  return all
    .map((command) => ({ command, distance: distanceOf(`${command.title} ${command.group}`.toLowerCase(), wanted) }))
    .filter(({ distance }) => distance < Infinity)
    .toSorted((a, b) => a.distance - b.distance)
    .slice(0, LIMIT)
    .map(({ command }) => command);
}

/** The distance between the typed letters in a text; infinite when one is missing. */
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
