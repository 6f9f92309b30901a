/** A panel at the right with the details of one item; Escape closes it. */
import { useEffect, useId, useLayoutEffect, useRef, type ReactNode } from "react";
import { Button } from "./controls";

export function Drawer({ title, close, children }: {
  title: ReactNode;
  close: () => void;
  children: ReactNode;
}) {
  const panel = useRef<HTMLElement>(null);
  const heading = useId();
  useFocusInside(panel);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const inDialog = event.target instanceof Element && event.target.closest("dialog");
      if (event.key === "Escape" && !inDialog) close();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [close]);
  return (
    <aside
      ref={panel}
      tabIndex={-1}
      aria-labelledby={heading}
      className="flex w-[28rem] shrink-0 flex-col border-l border-line bg-page outline-none max-lg:absolute max-lg:inset-y-0 max-lg:right-0 max-lg:z-10 max-sm:w-full"
    >
      <header className="flex items-center gap-3 px-4 py-2">
        <h2 id={heading} className="min-w-0 flex-1 truncate font-semibold">{title}</h2>
        <Button onClick={close} aria-label="Close">
          ✕
        </Button>
      </header>
      {/* oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
      <div role="region" aria-label="Details" tabIndex={0} className="min-h-0 flex-1 overflow-auto px-4 pb-6">
        {children}
      </div>
    </aside>
  );
}

/** Moves the focus to a panel when it opens, and back to where it was when the panel closes. */
function useFocusInside(panel: React.RefObject<HTMLElement | null>): void {
  useLayoutEffect(() => {
    const element = panel.current;
    const opener = document.activeElement;
    element?.focus({ preventScroll: true });
    return () => {
      const inside = element?.contains(document.activeElement) || document.activeElement === document.body;
      if (inside && opener instanceof HTMLElement) opener.focus({ preventScroll: true });
    };
  }, [panel]);
}
