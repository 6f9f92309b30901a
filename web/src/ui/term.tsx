/** Words of Strata, each with a link to its definition. */
import type { ReactNode } from "react";
import { GLOSSARY, type Word } from "../lib/glossary";
import { change } from "../state/url";

export type { Word };

/** A word with a dotted underline; a click opens the glossary at the word. */
export function Term({ word, children = word }: { word: Word; children?: ReactNode }) {
  return (
    <button
      type="button"
      title={GLOSSARY[word]}
      aria-haspopup="dialog"
      onClick={() => change({ glossary: word }, "push")}
      className="cursor-help underline decoration-dotted decoration-1 underline-offset-3"
    >
      {children}
    </button>
  );
}

const scrollIntoView = (element: HTMLElement | null) => element?.scrollIntoView({ block: "nearest" });

/** All words with their definitions; the chosen one is highlighted. */
export function Glossary({ chosen }: { chosen: string }) {
  return (
    <>
      <dl>
        {Object.entries(GLOSSARY).map(([word, text]) => (
          <div
            key={word}
            ref={word === chosen ? scrollIntoView : undefined}
            className={`rounded-sm px-2 py-1 ${word === chosen ? "bg-chosen" : ""}`}
          >
            <dt className="font-medium">{word}</dt>
            <dd className="text-dim">{text}</dd>
          </div>
        ))}
      </dl>
      <p className="px-2 pt-2 text-s text-faint">docs/GLOSSARY.md in the repository has all words.</p>
    </>
  );
}
