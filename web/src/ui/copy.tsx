/** Buttons that copy text to the clipboard and confirm it. */
import { useState } from "react";
import { Button } from "./controls";

const CONFIRMED_MS = 1500;

export function useCopy(): [boolean, (text: string) => void] {
  const [copied, setCopied] = useState(false);
  const copy = (text: string) => {
    void navigator.clipboard?.writeText(text).then(() => {
      setCopied(true);
      setTimeout(() => setCopied(false), CONFIRMED_MS);
    });
  };
  return [copied, copy];
}

export function CopyButton({ text, label }: { text: () => string; label: string }) {
  const [copied, copy] = useCopy();
  return (
    <Button onClick={() => copy(text())} title={text()}>
      {copied ? "copied" : label}
    </Button>
  );
}

/** A shell command; a click copies it. */
export function Command({ text }: { text: string }) {
  const [copied, copy] = useCopy();
  return (
    <button
      type="button"
      title="Copy"
      onClick={() => copy(text)}
      className="inline-flex max-w-full items-center gap-2 rounded-sm bg-hover px-2 py-1 text-left font-mono text-s"
    >
      <span aria-hidden className="text-faint select-none">
        {copied ? "✓" : "$"}
      </span>
      <span className="truncate">{text}</span>
    </button>
  );
}
