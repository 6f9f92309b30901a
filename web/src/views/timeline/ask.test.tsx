import { screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { Ask } from "./ask";

const question = { name: "lost", text: "Why was it declared lost?", params: [{ name: "worker", kind: "id", required: true }, { name: "time_ms", kind: "time", required: false }] };
const answer = { question: "lost", verdict: "yes", answer: "no heartbeat for 30 s", chain: [], cost: { text: "" }, findings: [], trust: { findings: [] } };

it("asks a question once its required parameters are given", async () => {
  const requests = serve({ "/api/timeline/questions": () => ({ body: [question] }), "/api/timeline/why": () => ({ body: answer }) });
  const { user } = show(<Ask close={() => undefined} onEvent={() => undefined} />);
  await user.click(await screen.findByRole("button", { name: question.text }));
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Ask" }).disabled).toBe(true);
  await user.type(screen.getByLabelText("worker"), "w3");
  await user.click(screen.getByRole("button", { name: "Ask" }));
  expect(await screen.findByText("no heartbeat for 30 s")).toBeTruthy();
  expect(requests.at(-1)?.search).toBe("?question=lost&worker=w3");
});
