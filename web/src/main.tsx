import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode, useMemo } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api/client";
import { live } from "./api/live";
import { readRun } from "./api/timeline";
import { App } from "./shell/app";
import { useRun } from "./state/cluster";
import "./state/theme";
import "./styles.css";

const OPTIONS = {
  defaultOptions: {
    queries: {
      refetchOnWindowFocus: false,
      // What the coordinator refuses it refuses again; what did not arrive may.
      retry: (failures: number, error: Error) => failures < 2 && error instanceof ApiError && error.status === 0,
    },
  },
};

/** Everything anew when another run is looked at: nothing of the one may be taken for the other's. */
function Root() {
  const run = useRun();
  const queries = useMemo(() => {
    readRun(run);
    return new QueryClient(OPTIONS);
  }, [run]);
  return (
    <QueryClientProvider key={run} client={queries}>
      <App />
    </QueryClientProvider>
  );
}

live.open();

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Root />
  </StrictMode>,
);
