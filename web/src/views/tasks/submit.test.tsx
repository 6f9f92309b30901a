import { screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { show } from "../../testing/show";
import { SubmitPage } from "./submit";

function fetches(body: unknown, status = 200) {
  const fetched = vi.fn<(request: Request) => Promise<Response>>(async () => new Response(JSON.stringify(body), { status }));
  vi.stubGlobal("fetch", fetched);
  return fetched;
}

it("shows what is wrong and sends nothing", async () => {
  const fetched = fetches({});
  const { user } = show(<SubmitPage />, "#/tasks/new");
  await user.click(screen.getByRole("button", { name: "Submit" }));
  expect(screen.getByText("enter a name")).toBeTruthy();
  expect(fetched).not.toHaveBeenCalled();
});

it("sends the request and opens the page of the task", async () => {
  const fetched = fetches({ task_id: "night-1" });
  const { user } = show(<SubmitPage />, "#/tasks/new");
  await user.type(screen.getByLabelText("Name"), "night");
  await user.click(screen.getByRole("button", { name: "Submit" }));
  await vi.waitFor(() => expect(location.hash).toBe("#/tasks/night-1"));
  const request = fetched.mock.calls[0]![0];
  expect([request.method, new URL(request.url).pathname]).toEqual(["POST", "/api/tasks"]);
  expect(await request.json()).toMatchObject({ name: "night", worker_count: 1, config: {} });
});

it("shows the message and the hint of a refusal", async () => {
  fetches({ error: { code: "conflict", message: "the name is taken", hint: "choose another" } }, 409);
  const { user } = show(<SubmitPage />, "#/tasks/new");
  await user.type(screen.getByLabelText("Name"), "night");
  await user.click(screen.getByRole("button", { name: "Submit" }));
  expect((await screen.findByRole("alert")).textContent).toBe("the name is taken (choose another)");
});
