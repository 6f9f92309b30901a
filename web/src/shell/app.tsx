/** The frame around every view: navigation, time strip, notices and dialogs. */
import { Component, Suspense, type ReactNode } from "react";
import { useLive } from "../state/cluster";
import { usePlace } from "../state/url";
import { Empty, Loading } from "../ui/placeholders";
import { useDocumentTitle } from "./title";
import { Dialogs } from "./dialogs";
import { Notices } from "./notices";
import { Rail } from "./rail";
import { Strip } from "./strip";
import { TokenForm } from "./token";
import { VIEWS } from "./views";

export function App() {
  useDocumentTitle();
  return (
    <div className="grid h-full grid-cols-[auto_minmax(0,1fr)] grid-rows-[auto_minmax(0,1fr)] max-sm:grid-cols-1 max-sm:pb-13">
      <button
        type="button"
        className="sr-only focus:not-sr-only focus:fixed focus:z-50 focus:bg-page focus:p-2"
        onClick={() => document.getElementById("main")?.focus()}
      >
        Skip to the view
      </button>
      <Rail />
      <Strip />
      <main id="main" tabIndex={-1} className="flex min-h-0 min-w-0 flex-col">
        <Notices />
        <div className="min-h-0 flex-1">
          <Current />
        </div>
      </main>
      <Dialogs />
    </div>
  );
}

function Current() {
  const { connection } = useLive();
  const name = usePlace().path[0] ?? "overview";
  const view = VIEWS.find((each) => each.name === name);
  if (connection.state === "locked") return <TokenForm />;
  if (!view) {
    return (
      <div className="px-6">
        <Empty title={`There is no view “${name}”`} text="Choose one from the list of views." />
      </div>
    );
  }
  return (
    <Boundary key={name}>
      <Suspense fallback={<div className="px-6"><Loading /></div>}>
        <view.component />
      </Suspense>
    </Boundary>
  );
}

/** Shows the error of a view that fails; the other views keep working. */
class Boundary extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    const { error } = this.state;
    return error ? (
      <div className="px-6">
        <Empty title="This view failed" text={`${error.name}: ${error.message}. Reload the page. If it fails again, please report it.`} />
      </div>
    ) : (
      this.props.children
    );
  }
}
