/** Navigation between the views: a rail at the left, or a bar at the bottom of a phone. */
import { useCluster } from "../state/cluster";
import { hrefTo, usePlace } from "../state/url";
import { Icon, VIEWS } from "./views";

export function Rail() {
  const current = usePlace().path[0] ?? "overview";
  const { cluster } = useCluster();
  const problems = cluster?.attention.length ?? 0;
  return (
    <nav
      aria-label="Views"
      className="row-span-2 flex w-42 flex-col gap-0.5 border-r border-line bg-rail p-2 max-lg:w-12 max-sm:fixed max-sm:inset-x-0 max-sm:bottom-0 max-sm:z-20 max-sm:w-full max-sm:flex-row max-sm:justify-between max-sm:border-t max-sm:border-r-0 max-sm:p-1"
    >
      <a
        href={hrefTo(["overview"])}
        className="mb-2 flex h-8 items-center gap-2 px-2 font-semibold tracking-tight max-sm:hidden"
      >
        <Layers />
        <span className="max-lg:sr-only">Strata</span>
      </a>
      {VIEWS.map(({ name, title, icon }) => (
        <a
          key={name}
          href={hrefTo([name])}
          title={title}
          aria-current={name === current ? "page" : undefined}
          className={`flex h-8 items-center gap-2.5 rounded-sm px-2 max-sm:h-11 max-sm:flex-1 max-sm:justify-center ${
            name === current ? "bg-chosen font-medium" : "text-dim hover:bg-hover hover:text-text"
          }`}
        >
          <Icon path={icon} />
          <span className="max-lg:sr-only">{title}</span>
          {name === "overview" && problems > 0 && (
            <span
              title={`${problems} ${problems === 1 ? "item needs" : "items need"} attention`}
              className="ml-auto text-s text-recovering max-lg:hidden"
            >
              {problems}
            </span>
          )}
        </a>
      ))}
      <p className="mt-auto px-2 pb-1 text-s text-faint max-lg:hidden">
        <a href="docs/" target="_blank" rel="noreferrer" className="block pb-1 hover:text-text">
          Documentation
        </a>
        <kbd className="font-sans">?</kbd> keys · <kbd className="font-sans">Ctrl K</kbd> find
      </p>
    </nav>
  );
}

function Layers() {
  return (
    <svg aria-hidden width="16" height="16" viewBox="0 0 16 16" className="shrink-0">
      <rect x="1" y="2" width="14" height="3" rx="1" className="fill-accent" />
      <rect x="1" y="6.5" width="10" height="3" rx="1" className="fill-active" />
      <rect x="1" y="11" width="14" height="3" rx="1" className="fill-saving" />
    </svg>
  );
}
