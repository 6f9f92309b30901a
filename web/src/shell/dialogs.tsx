/** The palette and the help, and the keys of the whole page. */
import { useEffect, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { goLive } from "../state/cluster";
import { useKeys } from "../state/keys";
import { go } from "../state/url";
import { commands, KEYS } from "./commands";
import { matching, type Command } from "./matching";
import { VIEWS } from "./views";

type Open = "palette" | "help" | null;

export function Dialogs() {
  const [open, setOpen] = useState<Open>(null);
  const toView = Object.fromEntries(VIEWS.map(({ name }, index) => [String(index + 1), () => go([name])]));
  useKeys({
    "mod+k": () => setOpen("palette"),
    "?": () => setOpen("help"),
    "/": () => document.querySelector<HTMLElement>("[data-search]")?.focus(),
    l: goLive,
    ...toView,
  });
  const close = () => setOpen(null);
  if (open === "palette") return <Modal label="Find" close={close}><Palette close={close} /></Modal>;
  return open === "help" ? <Modal label="Keys" close={close}><Help /></Modal> : null;
}

function Modal({ label, close, children }: { label: string; close: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    // A click on the backdrop is a click on the dialog itself; Escape is the keyboard's way.
    // oxlint-disable-next-line jsx-a11y/no-noninteractive-element-interactions, jsx-a11y/click-events-have-key-events
    <dialog
      ref={dialog}
      aria-label={label}
      onClose={close}
      onClick={(event) => event.target === dialog.current && close()}
      className="mx-auto mt-[12vh] w-[34rem] max-w-[92vw] rounded-md border border-edge bg-page p-0 text-text backdrop:bg-black/40"
    >
      <div className="p-3">{children}</div>
    </dialog>
  );
}

function Palette({ close }: { close: () => void }) {
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const [all] = useState(commands);
  const found = useMemo(() => matching(all, typed), [all, typed]);
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
        // The palette was asked for by a key; what is typed next belongs to it.
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
      <div id="found" role="listbox" aria-label="Found" className="mt-2 max-h-80 overflow-auto">
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
      {found.length === 0 && <p className="px-2 py-3 text-dim">Nothing found.</p>}
    </>
  );
}

function Help() {
  return (
    <>
      <h2 className="px-2 pb-2 font-semibold">Keys</h2>
      <dl>
        {KEYS.map(([keys, text]) => (
          <div key={keys} className="flex gap-4 px-2 py-1">
            <dt className="w-28 shrink-0 font-mono text-s">{keys}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}
