/** The dialogs of the page (command palette, help, glossary) and the shortcuts of every view. */
import { useState } from "react";
import { goLive } from "../state/cluster";
import { setCharacterKeys, useCharacterKeys, useKeys } from "../state/keys";
import { go, useParam } from "../state/url";
import { Glossary } from "../ui/term";
import { Modal } from "../ui/modal";
import { SHORTCUTS } from "./commands";
import { Palette } from "./palette";
import { keyOfView, VIEWS } from "./views";

export function Dialogs() {
  const [open, setOpen] = useState<"palette" | "help" | null>(null);
  const [word, setWord] = useParam("glossary");
  const toView = Object.fromEntries(VIEWS.map(({ name }, index) => [keyOfView(index), () => go([name])]));
  useKeys({
    "mod+k": () => setOpen("palette"),
    "?": () => setOpen("help"),
    "/": () => document.querySelector<HTMLElement>("[data-search]")?.focus(),
    l: goLive,
    ...toView,
  });
  const close = () => setOpen(null);
  if (open === "palette") return <Modal key="palette" title="Find" close={close}><Palette close={close} /></Modal>;
  if (open === "help") return <Modal key="help" title="Keyboard shortcuts" close={close}><Help /></Modal>;
  return word ? <Modal key="glossary" title="Glossary" close={() => setWord("")}><Glossary chosen={word} /></Modal> : null;
}

function Help() {
  return (
    <>
      <dl>
        {SHORTCUTS.map(([keys, text]) => (
          <div key={keys} className="flex gap-4 px-2 py-1">
            <dt className="w-28 shrink-0 font-mono text-s">{keys}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <CharacterKeysSwitch />
    </>
  );
}

/** Turns shortcuts that are a single character off, for people who speak to their computer or press keys by accident. */
export function CharacterKeysSwitch() {
  const on = useCharacterKeys();
  return (
    <label className="mt-2 flex items-center gap-2 px-2 py-1">
      <input type="checkbox" className="size-4 accent-accent" checked={on} onChange={(event) => setCharacterKeys(event.target.checked)} />
      Single-key shortcuts (letters, digits, signs and Space)
    </label>
  );
}
