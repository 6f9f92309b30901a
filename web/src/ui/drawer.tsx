/** A panel at the right for one thing that was chosen; Escape closes it. */
import { useEffect, type ReactNode } from "react";
import { Button } from "./controls";

export function Drawer({ title, close, children }: {
  title: ReactNode;
  close: () => void;
  children: ReactNode;
}) {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape") close();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [close]);
  return (
    <aside className="flex w-[28rem] shrink-0 flex-col border-l border-line bg-page max-lg:absolute max-lg:inset-y-0 max-lg:right-0 max-lg:z-10 max-sm:w-full">
      <header className="flex items-center gap-3 px-4 py-2">
        <h2 className="min-w-0 flex-1 truncate font-semibold">{title}</h2>
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
