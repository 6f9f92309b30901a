/** Renders a component as the page would: at an address, with a query client of its own. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import type { ReactNode } from "react";

export function show(ui: ReactNode, hash = "#/") {
  location.hash = hash;
  const queries = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  const result = render(<QueryClientProvider client={queries}>{ui}</QueryClientProvider>);
  return { ...result, user: userEvent.setup() };
}
