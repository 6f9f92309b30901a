/** Markers above a chart: what happened to the run, each with a sign, a text, and its moment. */
import { useState, type KeyboardEvent } from "react";
import { markerGroups, type MarkerGroup, type PlacedMarker } from "../lib/curves";
import { clock } from "../lib/format";
import type { Span } from "../lib/scale";
import { visible } from "../lib/text";

const HEIGHT_PX = 16;
const SHOWN = 6;

/** The sign and the colour of each kind; the signs differ, so that the colour is not needed. */
const LOOKS: Record<string, readonly [sign: string, colour: string]> = {
  lost: ["✕", "text-failed"],
  recovery: ["↻", "text-recovering"],
  rollback: ["↶", "text-recovering"],
  checkpoint: ["◆", "text-saving"],
  fork: ["⑂", "text-accent"],
  restart: ["⟳", "text-accent"],
  continued: ["→", "text-accent"],
  resize: ["↔", "text-accent"],
  config: ["✎", "text-dim"],
  alert: ["!", "text-failed"],
};
const URGENT = ["alert", "lost", "rollback", "recovery"];

/** The kind that stands for a group: the most urgent one. */
function kindOf({ placed }: MarkerGroup): string {
  return URGENT.find((kind) => placed.some(({ marker }) => marker.kind === kind)) ?? placed[0]!.marker.kind;
}

/** The name of a group; voice control finds a button by its visible text, so it contains the number. */
function nameOf(group: MarkerGroup): string {
  const count = group.placed.length;
  return `${count > 1 ? `${count} markers: ` : ""}${textsOf(group).join("; ")}`;
}

function textsOf({ placed }: MarkerGroup): string[] {
  const texts = placed.slice(0, SHOWN).map(({ marker }) => `${clock(marker.at_ms)} ${visible(marker.text)}`);
  return placed.length > SHOWN ? [...texts, `and ${placed.length - SHOWN} more`] : texts;
}

interface Props {
  placed: readonly PlacedMarker[];
  window: Span;
  width: number;
  left: number;
  onMoment: (atMs: number, curve: number) => void;
}

/** One tab stop; the arrow keys go from marker to marker, a click or Enter shows the moment. */
export function MarkerStrip({ placed, window, width, left, onMoment }: Props) {
  const [open, setOpen] = useState<number | null>(null);
  const groups = markerGroups(placed, window, width);
  if (groups.length === 0) return <div style={{ height: HEIGHT_PX }} />;
  const onKey = (event: KeyboardEvent<HTMLElement>) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const buttons = [...event.currentTarget.querySelectorAll("button")];
    buttons[buttons.indexOf(document.activeElement as HTMLButtonElement) + by]?.focus();
  };
  const shown = open === null ? undefined : groups[open];
  return (
    // oxlint-disable-next-line jsx-a11y/no-static-element-interactions, jsx-a11y/interactive-supports-focus
    <div role="toolbar" aria-label="Markers" className="relative" style={{ height: HEIGHT_PX }} onKeyDown={onKey}>
      {groups.map((group, index) => {
        const [sign, colour] = LOOKS[kindOf(group)] ?? ["•", "text-dim"];
        return (
          <button
            key={group.placed[0]!.x}
            type="button"
            tabIndex={index === (open ?? 0) ? 0 : -1}
            aria-label={nameOf(group)}
            className={`absolute flex h-4 min-w-4 -translate-x-1/2 items-center justify-center text-s leading-none ${colour}`}
            style={{ left: left + group.px }}
            onClick={() => onMoment(group.placed[0]!.marker.at_ms, group.placed[0]!.curve)}
            onFocus={() => setOpen(index)}
            onBlur={() => setOpen(null)}
            onMouseEnter={() => setOpen(index)}
            onMouseLeave={() => setOpen(null)}
          >
            <span aria-hidden>{sign}{group.placed.length > 1 && <sub className="text-[9px] text-dim">{group.placed.length}</sub>}</span>
          </button>
        );
      })}
      {shown && (
        <div role="tooltip" className="pointer-events-none absolute top-5 z-20 max-w-80 rounded-sm border border-edge bg-rail px-2 py-1 text-s shadow-lg" style={shown.px > width / 2 ? { right: width - shown.px } : { left: left + shown.px }}>
          {textsOf(shown).map((text) => <p key={text}>{text}</p>)}
        </div>
      )}
    </div>
  );
}
