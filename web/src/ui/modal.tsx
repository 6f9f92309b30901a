/** A modal dialog; the browser keeps the focus inside and gives it back. Escape or a click beside it closes it. */
import { useEffect, useRef, type ReactNode } from "react";
import { Button } from "./controls";

/** Moves the focus to the first field, instead of the close button; also the `ref` of a form that appears later. */
export function focusFirstField(element: HTMLElement | null): void {
  element?.querySelector<HTMLElement>("input:not([type=checkbox]), select, textarea")?.focus();
}

export function Modal({ title, close, children }: { title: string; close: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    element?.showModal();
    focusFirstField(element);
    return () => element?.close();
  }, []);
  return (
    // A click on the backdrop is a click on the dialog itself; on the keyboard, Escape closes it.
    // oxlint-disable-next-line jsx-a11y/no-noninteractive-element-interactions, jsx-a11y/click-events-have-key-events
    <dialog
      ref={dialog}
      aria-modal
      aria-label={title}
      onClose={() => !dialog.current?.open && close()}
      onClick={(event) => event.target === dialog.current && close()}
      className="mx-auto mt-[12vh] max-h-[76vh] w-[34rem] max-w-[92vw] rounded-md border border-edge bg-page p-0 text-text backdrop:bg-black/40"
    >
      <div className="flex max-h-[75vh] flex-col p-3">
        <header className="flex items-center justify-between px-2 pb-2">
          <h2 className="font-semibold">{title}</h2>
          <Button onClick={close} aria-label="Close">✕</Button>
        </header>
        {/* oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
        <div role="region" aria-label={title} tabIndex={0} className="min-h-0 overflow-auto">{children}</div>
      </div>
    </dialog>
  );
}
