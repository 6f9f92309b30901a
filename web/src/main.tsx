import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api/client";
import { live } from "./api/live";
import { App } from "./shell/app";
import { useRun } from "./state/cluster";
import "./state/theme";
import "./styles.css";

const OPTIONS = {
  defaultOptions: {
    queries: {
      refetchOnWindowFocus: false,
      // A request that did not arrive is repeated; one that was refused would be refused again.
      retry: (failures: number, error: Error) => failures < 2 && error instanceof ApiError && error.status === 0,
    },
  },
};

/** The page for one run. Another run gets a new query cache, so that answers of two runs never mix. */
function Run() {
  const [queries] = useState(() => new QueryClient(OPTIONS));
  return (
    <QueryClientProvider client={queries}>
      <App />
    </QueryClientProvider>
  );
}

function Root() {
  return <Run key={useRun()} />;
}

live.open();

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Root />
  </StrictMode>,
);
