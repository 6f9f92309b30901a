/** The command palette: a search field over the list of commands. */
import { useEffect, useMemo, useRef, useState, type KeyboardEvent } from "react";
import { commands } from "./commands";
import { matching, type Command } from "./command-search";

export function Palette({ close }: { close: () => void }) {
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const [all] = useState(commands);
  const list = useRef<HTMLDivElement>(null);
  const found = useMemo(() => matching(all, typed), [all, typed]);
  useEffect(() => {
    list.current?.children[chosen]?.scrollIntoView({ block: "nearest" });
  }, [chosen]);
  const run = (command: Command | undefined) => {
    close();
    command?.run();
  };
  const onKey = (event: KeyboardEvent) => {
    const moves: Record<string, number> = { ArrowDown: 1, ArrowUp: -1 };
    const move = moves[event.key];
    if (event.key === "Enter") run(found[chosen]);
    else if (move) setChosen((chosen + move + found.length) % Math.max(found.length, 1));
    else return;
    event.preventDefault();
  };
  return (
    <>
      <input
        // The palette was opened to type into it.
        // oxlint-disable-next-line jsx-a11y/no-autofocus
        autoFocus
        role="combobox"
        aria-expanded
        aria-controls="found"
        aria-activedescendant={`found-${chosen}`}
        aria-label="Find a view, task, worker or action"
        placeholder="Find a view, task, worker or action"
        className="control h-9! w-full"
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          setChosen(0);
        }}
        onKeyDown={onKey}
      />
      <div ref={list} id="found" role="listbox" aria-label="Results" className="mt-2 max-h-80 overflow-auto">
        {found.map((command, index) => (
          <div
            key={`${command.group} ${command.title}`}
            id={`found-${index}`}
            role="option"
            tabIndex={-1}
            aria-selected={index === chosen}
            onPointerEnter={() => setChosen(index)}
            onClick={() => run(command)}
            onKeyDown={onKey}
            className={`flex cursor-pointer items-center gap-3 rounded-sm px-2 py-1 ${index === chosen ? "bg-chosen" : ""}`}
          >
            <span className="min-w-0 flex-1 truncate">{command.title}</span>
            <span className="text-s text-dim">{command.group}</span>
            {command.keys && <kbd className="text-s text-dim">{command.keys}</kbd>}
          </div>
        ))}
      </div>
      {found.length === 0 && <p className="px-2 py-3 text-dim">No match.</p>}
    </>
  );
}
