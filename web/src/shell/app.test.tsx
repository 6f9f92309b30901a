import { act } from "@testing-library/react";
import { expect, it } from "vitest";
import { serve } from "../testing/server";
import { show } from "../testing/show";
import { App } from "./app";

it("names the view and the thing that it shows in the title of the page", async () => {
  serve({});
  show(<App />, "#/workers/train-1-w3");
  await act(async () => {});
  expect(document.title).toBe("train-1-w3 · Workers · Strata");
  await act(async () => {
    location.hash = "#/logs";
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  });
  expect(document.title).toBe("Logs · Strata");
});
